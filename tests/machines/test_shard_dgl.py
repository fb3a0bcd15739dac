"""DGL's loaders over a graph whose rows are split over machines: the batches of a whole graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

# First: it skips where there is no DGL.
from tests.adapters.dgl.graphs import random_graph, random_hetero

# isort: split

import dgl
import numpy as np
import pytest
import torch
import torch.distributed as dist
from dgl.dataloading import (
    DataLoader,
    LaborSampler,
    NeighborSampler,
    ShaDowKHopSampler,
    as_edge_prediction_sampler,
    negative_sampler,
)

import peergraph_dgl
from peergraph.memory import DistributedTable, Group, RemoteRowsError
from peergraph_dgl.graphbolt import FeatureStore
from peergraph_dgl.loader import exchange
from tests.machines.hosts import device_of_rank, run_on_hosts
from tests.named_case import named_case

NODES, EDGES = 60, 400
Values = list[Any]


def _graphs(batch: Any) -> Iterator[Any]:
    if isinstance(batch, (list, tuple)):
        for item in batch:
            yield from _graphs(item)
    elif isinstance(batch, dgl.DGLGraph):
        yield batch


def _values(batch: Any) -> Values:
    """Structure and data of all graphs of a batch, as lists."""
    results: Values = []
    for graph in _graphs(batch):
        for edge_type in graph.canonical_etypes:
            results.append(torch.stack(graph.edges(etype=edge_type)).tolist())
        for frame in (*graph._node_frames, *graph._edge_frames):
            columns = sorted(frame._columns.items())
            results.append({name: c.data.tolist() for name, c in columns if not _is_whole(c)})
    return results


class _OnGpu(torch.Tensor):
    """A tensor that is taken for one on a GPU, and notes the streams that use it."""

    streams: list[str]
    device = property(lambda _: torch.device("cuda"))  # type: ignore[assignment]

    def record_stream(self, stream: Any) -> None:
        self.streams = [*getattr(self, "streams", []), stream]


def test_streams_that_use_the_ids_of_lazy_features() -> None:
    ids = [torch.arange(3).as_subclass(_OnGpu) for _ in range(4)]
    graph = random_graph()
    graph.ndata["lazy"] = dgl.LazyFeature("x", ids[0])
    value = (graph, {"y": [dgl.LazyFeature("y", {"user": ids[1]}), dgl.LazyFeature("z")]}, ids[2])
    stream: Any = "stream"
    exchange._record_stream(stream, exchange.Sample(value, None, None))
    assert [getattr(i, "streams", []) for i in ids] == [[stream]] * 3 + [[]]


def _is_whole(column: Any) -> bool:
    """Whether a column is a whole table, as graphs of negative edges have them."""
    return isinstance(column, peergraph_dgl.StoreColumn) and column.table is not None


def _epoch(loader: Iterable[Any], limit: int | None = None) -> list[Values]:
    results: list[Values] = []
    for batch in loader:
        results.append(_values(batch))
        if len(results) == limit:
            break
    return results


def _mine(count: int) -> torch.Tensor:
    """Seeds of this rank: the last one has none, the others have different numbers of them."""
    rank, world = dist.get_rank(), dist.get_world_size()
    ends = [0, *(count * r * (r + 1) // (world * (world - 1)) for r in range(1, world)), count]
    ends[-1] = ends[-2]
    return torch.arange(ends[rank], ends[rank + 1])


def _batches(device: str, **options: Any) -> dict[str, list[Values]]:
    """Batches of loaders over a graph.

    Args:
        options: of placement.
    """
    place, rank = device_of_rank(device), dist.get_rank()
    Group.current(device=place, timeout=200)
    graph = random_graph(NODES, EDGES)
    g = peergraph_dgl.share(
        random_graph(NODES, EDGES) if rank == 0 else None, device=place, **options
    )
    store = peergraph_dgl.store_of(g)
    is_split = isinstance(store.node_table("x"), DistributedTable)
    assert is_split == (store.exchange is not None) == (options["machines"] == "shard")
    results: dict[str, list[Values]] = {}

    def loader(sampler: Any, seeds: Any = None, graph: Any = g, **more: Any) -> Any:
        seeds = _mine(NODES) if seeds is None else seeds
        torch.manual_seed(100 + rank)
        np.random.seed(100 + rank)  # noqa: NPY002  # DGL shuffles by it
        return DataLoader(graph, seeds, sampler, batch_size=4, shuffle=True, device=place, **more)

    for name, sampler in {
        "columns on first use": NeighborSampler([3, 2]),
        "columns that are prefetched": NeighborSampler(
            [3, 2], prefetch_node_feats=["x", "half"], prefetch_labels=["y"],
            prefetch_edge_feats=["e"],
        ),
        "weights": NeighborSampler([3], prob="w", replace=True),
        "labor": LaborSampler([3, 2]),
    }.items():  # fmt: skip
        with named_case(name):
            results[name] = _epoch(loader(sampler))
            assert len(results[name]) == -(-_mine(NODES).numel() // 4)
    with named_case("values are those of the graph"):
        for _, _, blocks in loader(NeighborSampler([3, 2])):
            for block in blocks:
                ids = block.srcdata[dgl.NID].cpu()
                assert torch.equal(block.srcdata["x"].cpu(), graph.ndata["x"][ids])
                e = graph.edata["e"][block.edata[dgl.EID].cpu()]
                assert torch.equal(block.edata["e"].cpu(), e)
                # A copy and a selection have the rows, too.
                assert torch.equal(block.local_var().srcdata["x"].cpu(), graph.ndata["x"][ids])
    with named_case("loops that are left, and loops within loops"):
        results["left"] = _epoch(loader(NeighborSampler([3])), 1 + rank)
        # They have equally many batches on all ranks. Both draw random numbers a batch ahead.
        outer = peergraph_dgl.stateful(loader(NeighborSampler([3]), torch.arange(10)))
        inner = peergraph_dgl.stateful(loader(NeighborSampler([2]), torch.arange(rank, rank + 10)))
        pairs = zip(outer, inner, strict=True)
        results["zipped"] = [[*_values(a), *_values(b)] for a, b in pairs]
    with named_case("workers"):
        results["workers"] = _epoch(loader(NeighborSampler([3]), num_workers=1)) if (
            device == "cpu"
        ) else []  # fmt: skip
    with named_case("a graph without DGL's formats, which draws torch's random numbers"):
        plain = peergraph_dgl.from_store(store, edges=True)
        edges = as_edge_prediction_sampler(
            NeighborSampler([3, 2]), negative_sampler=negative_sampler.GlobalUniform(2)
        )
        results["from_store"] = _epoch(loader(NeighborSampler([3, 2]), graph=plain))
        results["subgraphs"] = _epoch(loader(ShaDowKHopSampler([3, 2]), graph=plain))
        results["edges"] = _epoch(loader(edges, _mine(EDGES)[:20], plain))
    with named_case("edges and negative edges of DGL's graph"):
        for _, positive, negative, blocks in loader(edges, _mine(EDGES)[:20]):
            assert positive.num_nodes() == negative.num_nodes() == blocks[-1].num_dst_nodes()
            e = graph.edata["e"][positive.edata[dgl.EID].cpu()]
            assert torch.equal(positive.edata["e"].cpu(), e)
    with named_case("batches after a restart"):

        def stateful() -> Any:
            return peergraph_dgl.stateful(loader(NeighborSampler([3, 2])), seed=5)

        first, second = stateful(), stateful()
        results["stateful"] = [*_epoch(first), *_epoch(first)]
        count = len(results["stateful"]) // 2
        second.set_epoch(1, min(2, count))
        assert _epoch(second, 3) == results["stateful"][count:][min(2, count) :][:3]
    if is_split:
        _check_errors(g, store, graph, loader)
    hetero = random_hetero()
    h = peergraph_dgl.share(hetero if rank == 0 else None, device=place, **options)
    with named_case("several types"):
        seeds = {"item": _mine(50), "user": _mine(30)}
        results["hetero"] = _epoch(loader(NeighborSampler([3, 2]), seeds, h))
    dist.barrier()
    peergraph_dgl.store_of(h).close()
    store.close()
    return results


def _check_errors(g: Any, store: Any, graph: Any, loader: Any) -> None:
    ids = torch.arange(NODES)
    remote = ids[store.node_table("x").is_remote(ids).cpu()]
    assert remote.numel()
    with named_case("rows outside of batches"):
        with pytest.raises(RemoteRowsError, match=r'machines="shard".*collective_read'):
            g.ndata["x"][remote]
        rows = store.node_table("x").collective_read(remote[: dist.get_rank()].to(store.device))
        assert torch.equal(rows.cpu(), graph.ndata["x"][remote[: dist.get_rank()]])
        with pytest.raises(NotImplementedError, match="split over machines"):
            g.ndata["x"][remote] = graph.ndata["x"][remote]
    with named_case("GraphBolt"), pytest.raises(NotImplementedError, match="collective_read"):
        FeatureStore(store).read("node", None, "x", remote)
    with named_case("columns that are not prefetched"):
        sampler = NeighborSampler([3, 2], prefetch_edge_feats=["e"], prefetch_node_feats=["half"])
        # "half" is narrow, so that all columns of nodes are brought.
        for _, _, blocks in loader(sampler):
            assert blocks[0].srcdata["x"].shape[1] == 5
        before = store.network_traffic()
        for _, _, blocks in loader(NeighborSampler([3], prefetch_node_feats=["x"])):
            assert torch.equal(
                blocks[0].edata["w"].cpu(), graph.edata["w"][blocks[0].edata["_ID"].cpu()]
            )
        assert (store.network_traffic() - before).rows_received >= 0
    dist.barrier()


def _compare(device: str, batches_per_exchange: int) -> None:
    """Compares batches of a split graph with those of a graph that is whole on each machine."""
    result = _batches(
        device, machines="shard", hot_ratio=0.2, batches_per_exchange=batches_per_exchange
    )
    for name, batches in _batches(device, machines="replicate").items():
        assert result[name] == batches, name


@pytest.mark.timeout(500)
@pytest.mark.parametrize("batches_per_exchange", [1, 3])
def test_batches_are_those_of_whole_graphs(batches_per_exchange: int) -> None:
    run_on_hosts(_compare, "abb", "cpu", batches_per_exchange, timeout_s=400)


@pytest.mark.gpus(2)
@pytest.mark.parametrize("batches_per_exchange", [1, 3])
def test_batches_are_those_of_whole_graphs_on_gpus(batches_per_exchange: int) -> None:
    run_on_hosts(_compare, "ab", "cuda", batches_per_exchange, device="cuda", timeout_s=200)


@pytest.mark.gpus(4)
@pytest.mark.parametrize("hosts", ["aabb", "abbb"])
def test_batches_are_those_of_whole_graphs_on_four_gpus(hosts: str) -> None:
    run_on_hosts(_compare, hosts, "cuda", 1, device="cuda", timeout_s=200)
