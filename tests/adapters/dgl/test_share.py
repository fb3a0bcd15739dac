"""A shared graph against the graph that it was made of, method by method."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.graphs import assert_same_graph, random_graph, random_hetero

# isort: split

import dgl
import dgl.function as fn
import torch
import torch.multiprocessing as mp

import peergraph_dgl
from peergraph.store import StoreTensor
from peergraph.testing.starting import context_of
from peergraph_dgl import StoreColumn
from tests.named_case import named_case, named_cases

GRAPHS = {
    "homogeneous": random_graph,
    "heterogeneous": random_hetero,
    "int32": lambda: random_graph().int(),
    "csc only": lambda: random_graph().formats("csc"),
    "coo only": lambda: random_graph().formats("coo"),
    "no edges": lambda: dgl.graph(([], []), num_nodes=3),
    "empty": lambda: dgl.graph(([], [])),
    "batched": lambda: dgl.batch([random_graph(), random_graph(seed=1)]),
}


def shared(g: Any) -> Any:
    return peergraph_dgl.share(g, device="cpu")


@named_cases(
    ("name", "plan"),
    [
        *zip(GRAPHS, itertools.cycle(["auto", "host", "sharded"]), strict=False),
        *itertools.product(["homogeneous"], ["host", "sharded"]),
    ],
)
def test_is_the_same_graph(name: str, plan: str, device: torch.device) -> None:
    g = GRAPHS[name]()
    result = peergraph_dgl.share(g, plan=plan, device=device)
    assert_same_graph(result, g)
    assert repr(result) == repr(g)
    assert result.device == torch.device("cpu")
    assert set(result.formats()["created"]) == {
        f for formats in g.formats().values() for f in formats
    }
    for node_type in g.ntypes:
        for column in g.nodes[node_type].data:
            assert isinstance(result.nodes[node_type].data[column], StoreTensor)
        assert torch.equal(result.batch_num_nodes(node_type), g.batch_num_nodes(node_type))
    if name == "batched":
        assert_same_graph(dgl.unbatch(result)[1], dgl.unbatch(g)[1])
    peergraph_dgl.store_of(result).close()


def test_structure_is_not_copied() -> None:
    """What DGL reads is the shared memory itself."""
    result = shared(random_graph())
    arrays = result._graph._forking_pk_state[2]
    ours = {array.tensor().data_ptr() for array in arrays}
    for layout in ("csc", "csr"):
        for array in result.adj_tensors(layout):
            assert array.data_ptr() in ours


METHODS: dict[str, Any] = {
    "num_nodes": lambda g: g.num_nodes(),
    "in_degrees": lambda g: g.in_degrees(),
    "out_degrees": lambda g: g.out_degrees([1, 2, 3]),
    "nodes": lambda g: g.nodes(),
    "edges": lambda g: torch.stack(g.edges(form="all", order="srcdst")),
    "find_edges": lambda g: torch.stack(g.find_edges([0, 7, 7])),
    "edge_ids": lambda g: g.edge_ids(*g.find_edges([3, 5]), return_uv=True)[2],
    "has_edges_between": lambda g: g.has_edges_between(*g.find_edges([3, 5])),
    "predecessors": lambda g: g.predecessors(3),
    "in_edges": lambda g: torch.stack(g.in_edges([3, 4])),
    "adj": lambda g: g.adj_external().to_dense(),
    "rows": lambda g: g.ndata["x"][torch.tensor([5, 2, 2])],
    "mask": lambda g: g.ndata["x"][g.ndata["train"]],
    "nonzero": lambda g: g.ndata["train"].nonzero(),
    "arithmetic": lambda g: (g.ndata["x"] * 2).sum(0),
    "edge rows": lambda g: g.edata["e"][[4, 1]],
    "node view": lambda g: g.nodes[[5, 2]].data["x"],
    "edge view": lambda g: g.edges[[5, 2]].data["w"],
    "subgraph": lambda g: g.subgraph([1, 5, 9]),
    "node_subgraph": lambda g: dgl.node_subgraph(g, g.ndata["train"].bool()),
    "edge_subgraph": lambda g: g.edge_subgraph([7, 3]),
    "in_subgraph": lambda g: dgl.in_subgraph(g, [1, 5]),
    "khop": lambda g: dgl.khop_in_subgraph(g, 3, 2)[0],
    "clone": lambda g: g.clone(),
    "formats": lambda g: g.formats("csc"),
    "reverse": lambda g: dgl.reverse(g, copy_edata=True),
    "self loops": lambda g: dgl.add_self_loop(dgl.remove_self_loop(g)),
    "bidirected": lambda g: dgl.to_bidirected(g, copy_ndata=True),
    "simple": lambda g: dgl.to_simple(g),
    "add_nodes": lambda g: dgl.add_nodes(g, 2),
    "remove_nodes": lambda g: dgl.remove_nodes(g, [0, 3]),
    "block": lambda g: dgl.to_block(dgl.in_subgraph(g, [1, 5]), [1, 5]).srcdata["_ID"],
    "partition": lambda g: dgl.metis_partition_assignment(g, 2).bincount(),
    "half": lambda g: g.ndata["x"].half(),
    "update_all": lambda g: updated(g, fn.copy_u("x", "m"), fn.mean("m", "h")),
    "with edges": lambda g: updated(g, fn.u_mul_e("x", "w", "m"), fn.sum("m", "h")),
    "user function": lambda g: updated(
        g, lambda edges: {"m": edges.src["x"] * edges.data["w"][:, None]}, fn.max("m", "h")
    ),
    "apply_edges": lambda g: edges_applied(g),
    "softmax": lambda g: dgl.ops.edge_softmax(g, g.edata["w"]),
    "random walk": lambda g: dgl.sampling.random_walk(g, [0, 1], length=3)[0].shape,
    "readout": lambda g: dgl.mean_nodes(g, "x"),
    "to_networkx": lambda g: g.to_networkx(node_attrs=["y"]).number_of_edges(),
    "homogeneous": lambda g: dgl.to_homogeneous(g, ndata=["x"]).ndata["x"],
}


def updated(g: Any, message: Any, reduce: Any) -> Any:
    with g.local_scope():
        g.update_all(message, reduce)
        return g.ndata["h"]


def edges_applied(g: Any) -> Any:
    with g.local_scope():
        g.apply_edges(fn.u_dot_v("x", "x", "score"))
        return g.edata["score"]


def test_methods() -> None:
    for name, method in METHODS.items():
        g = random_graph()
        with named_case(name):
            result, expected = method(shared(g)), method(g)
            if isinstance(expected, dgl.DGLGraph):
                assert_same_graph(result, expected)
            elif isinstance(expected, torch.Tensor):
                assert not isinstance(result, StoreTensor)
                assert torch.equal(result, expected)
            else:
                assert result == expected


def test_columns_come_and_go() -> None:
    g = random_graph()
    result = shared(g)
    result.ndata["new"] = torch.arange(60)
    result.edata["copy"] = result.edata["w"]
    assert torch.equal(result.ndata["new"], torch.arange(60))
    assert torch.equal(result.edata["copy"][[3]], g.edata["w"][[3]])
    del result.ndata["x"]
    assert "x" not in result.ndata
    assert result.ndata.pop("y").tolist() == g.ndata["y"].tolist()
    result.ndata["train"] = ~result.ndata["train"]
    assert torch.equal(result.ndata["train"], ~g.ndata["train"])
    assert result.edata.keys() == {"w", "mask", "e", "copy"}


def test_local_scope() -> None:
    g = random_graph()
    result = shared(g)
    with result.local_scope():
        result.ndata["x"] = result.ndata["x"] + 1
        result.ndata["h"] = torch.zeros(60)
        result.nodes[[1]].data["y"] = torch.tensor([77])
        result.edata.pop("w")
        assert int(result.ndata["y"][1]) == 77
    assert_same_graph(result, g)


def test_writes_reach_the_store() -> None:
    result = shared(random_graph())
    store = peergraph_dgl.store_of(result)
    result.ndata["x"][[3, 4]] = torch.ones(2, 5)
    result.nodes[[5]].data["x"] = torch.full((1, 5), 7.0)
    result.edges[[9, 2]].data["w"] = torch.tensor([9.0, 2.0])
    assert store.node_table("x").gather(torch.tensor([3, 4, 5]))[:, 0].tolist() == [1, 1, 7]
    assert store.edge_table("w").gather(torch.tensor([9, 2])).tolist() == [9, 2]
    # With gradients there is a column of this process's own, as ever.
    values = torch.ones(1, 5, requires_grad=True)
    result.nodes[[6]].data["x"] = 3 * values
    result.ndata["x"].sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[3.0] * 5]
    with pytest.raises(dgl.DGLError, match="Cannot update column of scheme"):
        result.nodes[[5]].data["y"] = torch.zeros(1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("option", [{}, {"prob": "w"}, {"mask": "mask"}, {"replace": True}])
def test_neighbor_loader(option: dict[str, Any], workers: int) -> None:
    """Lazy features, sliced features and prefetched ones, sampled here or by workers."""
    g = random_graph()
    result = shared(g)
    lazy = {"prefetch_node_feats": ["x"], "prefetch_edge_feats": ["e"], "prefetch_labels": ["y"]}
    sampler = dgl.dataloading.NeighborSampler([3, 2], **lazy, **option)
    loader = dgl.dataloading.DataLoader(
        result, torch.arange(60), sampler, batch_size=17, shuffle=True, num_workers=workers
    )
    seeds = []
    for inputs, outputs, blocks in loader:
        seeds += outputs.tolist()
        assert torch.equal(blocks[0].srcdata["x"], g.ndata["x"][inputs])
        assert torch.equal(blocks[0].srcdata["half"], g.ndata["half"][inputs])
        assert torch.equal(blocks[-1].dstdata["y"], g.ndata["y"][outputs])
        for block in blocks:
            assert not isinstance(block.edata["e"], StoreTensor)
            ids = block.edata["_ID"]
            assert torch.equal(block.edata["e"], g.edata["e"][ids])
            source, destination = block.edges()
            assert torch.equal(block.srcdata["_ID"][source], g.find_edges(ids)[0])
            assert torch.equal(block.dstdata["_ID"][destination], g.find_edges(ids)[1])
            if "mask" in option:
                assert bool(g.edata["mask"][ids].all())
    assert sorted(seeds) == list(range(60))


def test_store_tensors_as_weights_never_crash() -> None:
    """On every path by which a column's address would reach DGL's C library."""
    g = random_graph()
    result = shared(g)
    for name in ("w", "mask"):
        for replace in (False, True):
            block = dgl.sampling.sample_neighbors(
                result, torch.arange(60), 2, prob=name, replace=replace
            )
            assert block.num_edges() > 0
    assert dgl.sampling.random_walk(result, [1, 2], length=2, prob="w")[0].shape == (2, 3)
    dgl.transforms.sort_csc_by_tag(result, result.ndata["y"])
    assert dgl.ops.copy_u_sum(result, result.ndata["x"]).shape == (60, 5)
    assert dgl.ops.u_dot_v(result, result.ndata["x"], result.ndata["x"]).shape == (400, 1)
    assert dgl.ops.segment_reduce(torch.tensor([20, 40]), result.ndata["x"]).shape == (2, 5)
    assert dgl.backend.asnumpy(result.ndata["y"]).tolist() == g.ndata["y"].tolist()
    with pytest.raises(RuntimeError, match="no data_ptr"):
        dgl.backend.zerocopy_to_dgl_ndarray_for_write(result.ndata["y"])


def test_store_of() -> None:
    g = random_graph()
    result = shared(g)
    store = peergraph_dgl.store_of(result)
    for same in (result.clone(), result.formats("csc"), result.local_var(), result.int()):
        assert peergraph_dgl.store_of(same) is store
    for other in (g, dgl.add_self_loop(result), dgl.reverse(result), result.subgraph([1])):
        with pytest.raises(ValueError, match="without a store"):
            peergraph_dgl.store_of(other)
    result.add_edges([0], [1])
    with pytest.raises(ValueError, match="without a store"):
        peergraph_dgl.store_of(result)
    assert result.num_edges() == 401
    assert float(result.edata["w"][400]) == 0


def test_dtypes_that_dgl_itself_barely_knows() -> None:
    g = random_graph()
    g.edata["c"] = torch.randn(400, dtype=torch.complex64)
    g.ndata["i8"] = torch.arange(60).to(torch.int8)
    assert_same_graph(shared(g), g)


def test_attributes_of_the_object_come_along() -> None:
    g = random_graph()
    g.num_classes = 4
    assert shared(g).num_classes == 4


@pytest.mark.parametrize("plan", ["auto", "sharded"])
def test_graphs_made_of_a_shared_one_can_be_shared(plan: str, device: torch.device) -> None:
    g = random_graph()
    first = peergraph_dgl.share(g, plan=plan, device=device)
    second = peergraph_dgl.share(dgl.add_self_loop(first), plan=plan, device=device)
    assert_same_graph(second, dgl.add_self_loop(g))
    first.ndata["x"][[0]] = torch.zeros(1, 5)
    assert torch.equal(second.ndata["x"].clone(), g.ndata["x"])


def test_attached_storages() -> None:
    """`DataLoader.attach_data`: rows that a sampler asks for by name, of one type and by a dict."""

    class Asking(dgl.dataloading.Sampler):  # type: ignore[misc]
        def sample(self, graph: Any, ids: torch.Tensor) -> Any:
            return ids, dgl.frame.LazyFeature("rows", ids), dgl.frame.LazyFeature("by", {"_N": ids})

    g = random_graph()
    result = shared(g)
    store = peergraph_dgl.store_of(result)
    for graph in (g, result, peergraph_dgl.from_store(store)):
        loader = dgl.dataloading.DataLoader(graph, torch.arange(9), Asking(), batch_size=3)
        loader.attach_data("rows", peergraph_dgl.TableStorage(store, "x"))
        loader.attach_data("by", peergraph_dgl.TypedStorage(store, "x"))
        for ids, rows, by_type in loader:
            assert torch.equal(rows, g.ndata["x"][ids])
            assert torch.equal(by_type["_N"], g.ndata["x"][ids])


def test_bad_input() -> None:
    g = random_graph()
    with pytest.raises(TypeError, match="g must be a DGLGraph on rank 0, got str"):
        shared("graph")
    with pytest.raises(TypeError, match="got a block"):
        shared(dgl.to_block(g))
    with pytest.raises(ValueError, match="shared already"):
        shared(shared(g))
    g.ndata["x"].requires_grad_()
    with pytest.raises(NotImplementedError, match="'x' of '_N' requires gradients"):
        shared(g)


def _child(rank: int, graph: Any, queue: Any) -> None:
    mine = graph._graph._forking_pk_state[2][0]
    assert_same_graph(graph, random_graph())
    queue.put((type(mine).__name__, peergraph_dgl.store_of(graph).num_edges()))
    sampler = dgl.dataloading.NeighborSampler([2], prefetch_node_feats=["x"])
    for inputs, _, blocks in dgl.dataloading.DataLoader(graph, torch.arange(9), sampler):
        assert torch.equal(blocks[0].srcdata["x"], random_graph().ndata["x"][inputs])


def test_spawned_children_map_the_same_memory() -> None:
    """`mp.spawn(run, args=(g,))`, as in DGL's own examples; nothing is copied."""
    queue = context_of("forked").SimpleQueue()
    arguments = (shared(random_graph()), queue)
    mp.start_processes(_child, arguments, nprocs=2, start_method="forkserver")
    assert [queue.get() for _ in range(2)] == [("SharedArray", 400)] * 2


def test_fetch_gives_awaitables() -> None:
    g = random_hetero()
    result = shared(g)
    storage = result.get_node_storage("x", "item")
    assert isinstance(storage, StoreColumn)
    for ids in (
        torch.tensor([4, 4, 0]),
        torch.tensor([], dtype=torch.int64),
        torch.tensor([1]).int(),
    ):
        for dtype in (torch.int64, torch.int32):
            rows = storage.fetch(torch.tensor(ids, dtype=dtype), "cpu").wait()
            assert torch.equal(rows, g.nodes["item"].data["x"][ids])
    late = result.get_edge_storage("w", ("user", "buys", "item")).fetch(torch.tensor([200]), "cpu")
    with pytest.raises(IndexError, match="200"):
        late.wait()


def test_rows_that_the_host_does_not_hold(device: torch.device, tmp_path: Path) -> None:
    g = random_graph()
    g.ndata["wide"] = torch.randn(60, 900)
    result = peergraph_dgl.share(g, plan="host", device=device)
    host_bytes = peergraph_dgl.store_of(result).memory().host_bytes()
    less = {"plan": "host", "device": device, "host_budget": host_bytes - 100_000}
    result = peergraph_dgl.share(g, spill=tmp_path, **less)
    assert peergraph_dgl.store_of(result).memory().tier("disk") >= 100_000
    assert_same_graph(result, g)
    with pytest.raises(MemoryError, match="spill= names a folder"):
        peergraph_dgl.share(g, **less)
