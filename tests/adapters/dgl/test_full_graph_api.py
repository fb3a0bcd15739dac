"""A partitioned DGL graph is used like any other, and says what it cannot do."""

from __future__ import annotations

from typing import Any

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.full_graph_models import GRAPHS, MODELS, plain, train, typed  # isort: split

import copy

import dgl
import torch
import torch.nn.functional as F

import peergraph_dgl
from peergraph.fullgraph import PartitionedTensor, distribute
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.adapters.dgl.full_graph_operations import several_types
from tests.named_case import named_case

pytestmark = pytest.mark.usefixtures("one_thread_a_rank")


def _same_data(ours: Any, theirs: Any) -> None:
    assert set(ours.keys()) == set(theirs.keys())
    for name, values in theirs.items():
        assert isinstance(ours[name], PartitionedTensor)
        assert ours[name].shape == values.shape
        assert torch.equal(ours[name].full_tensor(), values), name


def _check_homogeneous() -> None:
    g = plain()
    part = peergraph_dgl.full_graph(g)
    assert isinstance(part, dgl.DGLGraph)
    assert not part.is_block
    assert (part.num_nodes(), part.num_edges()) == (g.num_nodes(), g.num_edges())
    assert (part.ntypes, part.canonical_etypes) == (g.ntypes, g.canonical_etypes)
    assert part.device == torch.device("cpu")
    assert part.idtype == g.idtype
    _same_data(part.ndata, g.ndata)
    _same_data(part.edata, g.edata)
    assert torch.equal(part.in_degrees().full_tensor(), g.in_degrees())
    assert torch.equal(part.out_degrees().full_tensor(), g.out_degrees())
    assert part.in_degrees(5) == g.in_degrees(5)
    ids = torch.tensor([7, 3, 3])
    assert torch.equal(part.in_degrees(ids).full_tensor(), g.in_degrees(ids))
    assert torch.equal(part.nodes().full_tensor(), g.nodes())
    for ours, theirs in zip(part.edges(form="all"), g.edges(form="all"), strict=True):
        assert torch.equal(ours.full_tensor(), theirs)
    assert part.int().in_degrees().dtype == torch.int32
    assert part.to("cpu").num_nodes() == g.num_nodes()
    assert "Graph(num_nodes=50" in repr(part)


def _check_heterogeneous() -> None:
    g = typed()
    part = peergraph_dgl.full_graph(g)
    assert (part.ntypes, part.canonical_etypes) == (g.ntypes, g.canonical_etypes)
    for ntype in g.ntypes:
        assert part.num_nodes(ntype) == g.num_nodes(ntype)
        _same_data(part.nodes[ntype].data, g.nodes[ntype].data)
    for etype in g.canonical_etypes:
        relation = part[etype]
        assert relation.num_edges() == g.num_edges(etype)
        assert torch.equal(relation.in_degrees().full_tensor(), g[etype].in_degrees())
        assert torch.equal(part.out_degrees(etype=etype).full_tensor(), g.out_degrees(etype=etype))
    buys = part["buys"]
    assert buys.srctypes == ["user"]
    assert torch.equal(buys.srcdata["feat"].full_tensor(), g.nodes["user"].data["feat"])
    assert torch.equal(buys.dstdata["feat"].full_tensor(), g.nodes["item"].data["feat"])


def _check_several_types() -> None:
    expected = several_types(typed())
    resident, offloaded = (
        several_types(peergraph_dgl.full_graph(typed(), **options))
        for options in ({}, {"offload": True, "num_chunks": 3})
    )
    for name, rows in [*resident.items(), *offloaded.items()]:
        with named_case(name):
            torch.testing.assert_close(rows, expected[name])


def _check_data() -> None:
    g = plain()
    part = peergraph_dgl.full_graph(g)
    with part.local_scope():
        part.ndata["h"] = torch.arange(50.0)  # equal on all ranks: each takes its rows
        part.ndata["feat"] = part.ndata["feat"] * 2
        part.edata["one"] = torch.ones(part.num_edges(), 1)
        assert torch.equal(part.ndata["h"].full_tensor(), torch.arange(50.0))
    assert "h" not in part.ndata
    assert "one" not in part.edata
    _same_data(part.ndata, g.ndata)
    other = part.local_var()
    other.ndata.pop("w", None)
    other.ndata["h"] = part.ndata["label"]
    assert "h" not in part.ndata
    cloned = copy.deepcopy(part)
    cloned.ndata["feat"].mul_(2)
    _same_data(part.ndata, g.ndata)
    with pytest.raises(dgl.DGLError, match="number of features to match"):
        part.ndata["h"] = torch.ones(3)
    back = torch.arange(49, -1, -1)
    with part.local_scope():
        part.ndata["h"] = part.ndata["feat"][back]
        assert torch.equal(part.ndata["h"].full_tensor(), g.ndata["feat"][back])


def _check_trainable_features() -> None:
    """A whole embedding on each rank gets the gradients of one process."""
    gradients = []
    for g in (plain(), peergraph_dgl.full_graph(plain())):
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(50, 6).double()
        extra = torch.nn.Parameter(torch.randn(50, 6, dtype=torch.float64))
        layer = peergraph_dgl.accelerate(dgl.nn.SAGEConv(6, 4, "mean").double())
        rows = extra
        if isinstance(g.ndata["feat"], PartitionedTensor):
            rows = distribute(extra, g.ndata["feat"])
        out = layer(g, embedding(g.nodes()) + rows)
        F.cross_entropy(out, g.ndata["label"]).backward()
        gradients.append([embedding.weight.grad, extra.grad, layer.fc_neigh.weight.grad])
    torch.testing.assert_close(gradients[1], gradients[0])


def _check_refusals() -> None:
    part = peergraph_dgl.full_graph(plain())
    way_out = r"before peergraph_dgl\.full_graph"
    for call in (
        lambda: part.add_edges([0], [1]),
        lambda: part.edge_subgraph([0, 1]),
        lambda: part.subgraph([0, 1]),
        lambda: dgl.add_self_loop(part),
        lambda: part.find_edges([0]),
        lambda: part.sample_neighbors([0], 2),
        lambda: part.adj_external(),
        lambda: part.apply_nodes(lambda nodes: {"x": nodes.data["feat"]}, [0, 1]),
        lambda: dgl.sampling.random_walk(part, [0], length=2),
    ):
        with pytest.raises(NotImplementedError, match=f"{way_out}|to all nodes"):
            call()
    with pytest.raises(NotImplementedError, match="stays on cpu"):
        part.to("meta")
    with pytest.raises(TypeError, match="distribute"):
        dgl.ops.copy_u_sum(part, torch.ones(50, 3))
    layer = dgl.nn.GraphConv(6, 3).double()
    for conv in (layer, peergraph_dgl.accelerate(copy.deepcopy(layer))):
        with pytest.raises(dgl.DGLError, match="0-in-degree"):
            conv(part, part.ndata["feat"])
    with pytest.raises(TypeError, match="DGLGraph or a Store, got int"):
        peergraph_dgl.full_graph(3)
    with pytest.raises(TypeError, match="block"):
        peergraph_dgl.full_graph(dgl.create_block(([0], [1])))
    grown = plain()
    grown.ndata["feat"].requires_grad_()
    with pytest.raises(NotImplementedError, match=r"data\['feat'\] requires gradients"):
        peergraph_dgl.full_graph(grown)


def _check_stores() -> None:
    """A shared graph, its store and a graph over the store are partitioned without DGL's graph."""
    group = Group.current()
    for make in (plain, typed):
        g = make()
        shared = peergraph_dgl.share(g if group.rank == 0 else None)
        store = peergraph_dgl.store_of(shared)
        for source in (shared, store, peergraph_dgl.from_store(store)):
            part = peergraph_dgl.full_graph(source)
            assert part.canonical_etypes == g.canonical_etypes
            for ntype in g.ntypes:
                _same_data(part.nodes[ntype].data, g.nodes[ntype].data)
            for etype in g.canonical_etypes:
                _same_data(part.edges[etype].data, g.edges[etype].data)
                ours, theirs = part[etype].edges(), g.edges(etype=etype)
                for ids, expected in zip(ours, theirs, strict=True):
                    assert torch.equal(ids.full_tensor(), expected)
        group.barrier()
        store.close()


def _check_tiny() -> None:
    """Ranks without a node, and without a training node."""
    for name in ("one node", "two nodes"):
        for model in ("SAGE mean", "GIN", "functions of the user"):
            if name == "one node" and model == "GIN":
                continue  # BatchNorm of one row raises, as in one process.
            make = MODELS[model][0]
            got = train(make, peergraph_dgl.full_graph(GRAPHS[name]()), 3)
            torch.testing.assert_close(got, train(make, GRAPHS[name](), 3), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("world_size", [1, 3])
def test_graph(world_size: int) -> None:
    run_ranks(_all_checks, world_size, timeout_s=200)


def _all_checks() -> None:
    for check in (
        _check_homogeneous,
        _check_heterogeneous,
        _check_several_types,
        _check_data,
        _check_trainable_features,
        _check_refusals,
        _check_stores,
        _check_tiny,
    ):
        check()


def test_one_process_without_torch_distributed() -> None:
    _check_homogeneous()
    make, graph = MODELS["SAGE mean"]
    got = train(make, peergraph_dgl.full_graph(GRAPHS[graph]()), 3)
    torch.testing.assert_close(got, train(make, GRAPHS[graph](), 3))


class _Dropping(torch.nn.Module):
    """Dropout of features, of attention and of messages of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = dgl.nn.GATConv(6, 4, 2, feat_drop=0.3, attn_drop=0.4)
        self.second = dgl.nn.SAGEConv(8, 4, "mean", feat_drop=0.5)

    def forward(self, g: Any, x: torch.Tensor) -> torch.Tensor:
        h = F.dropout(self.first(g, x).flatten(1).relu(), 0.2, self.training)
        with g.local_scope():
            g.ndata["h"] = h
            g.update_all(
                lambda edges: {"m": F.dropout(edges.src["h"], 0.5, self.training)},
                dgl.function.mean("m", "h"),
            )
            h = h + g.ndata["h"]
        out: torch.Tensor = self.second(g, h)
        return out


def _drop(fast: bool) -> list[float]:
    return train(_Dropping, peergraph_dgl.full_graph(GRAPHS["loops"]()), 3, fast)


@pytest.mark.parametrize("fast", [False, True], ids=["DGL's layers", "accelerated"])
def test_dropout_is_the_same_on_any_number_of_ranks(fast: bool) -> None:
    curves = [run_ranks(_drop, world_size, fast) for world_size in (1, 3)]
    for losses in (rank for ranks in curves for rank in ranks):
        torch.testing.assert_close(losses, curves[0][0], rtol=1e-6, atol=1e-6)
    assert curves[0][0] != train(_Dropping, GRAPHS["loops"](), 3)


def test_ids_are_copies() -> None:
    g, part = plain(), peergraph_dgl.full_graph(plain())

    def ids() -> list[torch.Tensor]:
        return [part.nodes(), *part.edges(form="all"), part.in_degrees(), part.out_degrees()]

    for tensor in ids():
        tensor.add_(1)
    for tensor in ids():
        tensor.to_local().numpy().fill(3)  # type: ignore[attr-defined]
    theirs = [g.nodes(), *g.edges(form="all"), g.in_degrees(), g.out_degrees()]
    for ours, expected in zip(ids(), theirs, strict=True):
        assert torch.equal(ours.full_tensor(), expected)  # type: ignore[attr-defined]
