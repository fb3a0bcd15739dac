"""Loaders and samplers of PyG besides NeighborLoader, over rows that are split over machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch_geometric.loader import (
    CachedLoader,
    DataLoader,
    GraphSAINTNodeSampler,
    HGTLoader,
    ImbalancedSampler,
    LinkNeighborLoader,
    NeighborLoader,
    NodeLoader,
    PrefetchLoader,
    RandomNodeLoader,
    ShaDowKHopSampler,
    ZipLoader,
)
from torch_geometric.sampler import (
    BaseSampler,
    HeteroSamplerOutput,
    NegativeSampling,
    SamplerOutput,
)
from torch_geometric.sampler import NodeSamplerInput as NodeInput

import peergraph_pyg
from peergraph.memory import DistributedTable, Group, Machines, RemoteRowsError
from peergraph.store import EdgeFiles, NodeFiles, Store
from tests.named_case import named_case

Check = Callable[[Callable[[Any], Any], int], None]


class _UserSampler(BaseSampler):  # type: ignore[misc]
    """A sampler of a user."""

    def __init__(self, is_hetero: bool = False) -> None:
        self._is_hetero = is_hetero

    def sample_from_nodes(self, inputs: NodeInput, **_: Any) -> Any:
        metadata = inputs.input_id, inputs.time
        if self._is_hetero:
            papers = inputs.node
            authors = (3 * papers % 25).unique()
            edges = torch.arange(min(len(papers), len(authors)))
            relation = ("author", "writes", "paper")
            ends = ({relation: edges}, {relation: edges}, {relation: 3 * edges + papers[0]})
            nodes = {"paper": papers, "author": authors}
            return HeteroSamplerOutput(nodes, *ends, metadata=metadata)
        node = torch.cat([inputs.node, (7 * inputs.node + 1) % 60]).unique()
        edges = torch.arange(10)
        ends = (edges % len(node), (edges + 1) % len(node))
        return SamplerOutput(node, *ends, edge=5 * edges, metadata=metadata)

    def sample_from_edges(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def _seeds(count: int, machines: Machines) -> Tensor:
    """All ranks have some, of different numbers."""
    rank, world = machines.rank, machines.world_size
    return torch.arange(rank, count, world)[: 10 - 2 * rank]


def check_loaders(check: Check, machines: Machines) -> None:
    """Checks loaders over the graph of tests.machines.test_shard._data."""
    seeds = _seeds(60, machines)
    links = torch.stack([seeds, 3 * seeds % 60])

    def nodes(graph: Any, **options: Any) -> NeighborLoader:
        options = {"batch_size": 4, **options}
        return NeighborLoader(graph, [3, 2], input_nodes=seeds, **options)

    def edges(graph: Any, mode: str, **options: Any) -> LinkNeighborLoader:
        negatives = NegativeSampling(mode, amount=2)
        return LinkNeighborLoader(
            graph, [3, 2], edge_label_index=links, neg_sampling=negatives, batch_size=4, **options
        )

    def by_persistent_workers(graph: Any) -> Iterator[Any]:
        loader = nodes(graph, num_workers=2, persistent_workers=True)
        for _ in range(2):
            yield from loader
        # Where garbage collection ends them, torch waits five seconds for each of the workers.
        iterator = loader._iterator
        getattr(iterator, "iterator", iterator)._shutdown_workers()

    def balanced(graph: Any) -> Iterator[Any]:
        yield from nodes(graph, sampler=ImbalancedSampler(graph.y[seeds]))
        mask = graph.train_mask
        sampler = ImbalancedSampler(graph, input_nodes=mask)
        yield from NeighborLoader(graph, [3], input_nodes=mask, sampler=sampler, batch_size=9)

    def user_samplers(graph: Any) -> Iterator[Any]:
        yield from NodeLoader(graph, _UserSampler(), input_nodes=seeds, batch_size=4)
        pair = peergraph_pyg.stores(peergraph_pyg.store_of(graph))
        yield from NodeLoader(pair, _UserSampler(), input_nodes=seeds, batch_size=4)
        order = torch.utils.data.SequentialSampler(seeds)
        batches = torch.utils.data.BatchSampler(order, 3, drop_last=False)
        yield from nodes(graph, batch_size=1, batch_sampler=batches)

    cases: dict[str, Callable[[Any], Any]] = {
        "a worker": lambda graph: nodes(graph, num_workers=1),
        "persistent workers": by_persistent_workers,
        "a worker, batches by number": lambda graph: peergraph_pyg.stateful(
            nodes(graph, num_workers=1), seed=3
        ),
        "a worker and negatives": lambda graph: edges(graph, "triplet", num_workers=1),
        "triplets": lambda graph: edges(graph, "triplet"),
        "binary negatives": lambda graph: edges(graph, "binary"),
        "balanced": balanced,
        "samplers of users": user_samplers,
        "cached and prefetched": lambda graph: [
            *CachedLoader(nodes(graph)), *PrefetchLoader(nodes(graph))
        ],
        "disjoint": lambda graph: nodes(graph, disjoint=True),
        "induced": lambda graph: nodes(graph, subgraph_type="induced"),
    }  # fmt: skip
    for name, batches in cases.items():
        with named_case(name):
            check(batches, 1)


def check_hetero_loaders(check: Check, machines: Machines) -> None:
    """Checks loaders over the graph of tests.machines.test_shard._hetero."""
    papers = "paper", _seeds(40, machines)

    def user_samplers(graph: Any) -> Iterator[Any]:
        yield from NodeLoader(graph, _UserSampler(True), input_nodes=papers, batch_size=4)

    def workers(graph: Any) -> Iterator[Any]:
        yield from NeighborLoader(graph, [3, 2], input_nodes=papers, batch_size=4, num_workers=1)

    def hgt(graph: Any) -> Iterator[Any]:
        yield from HGTLoader(graph, [4, 3], input_nodes=papers, batch_size=4)

    for case in (user_samplers, workers, hgt):
        with named_case("types", case.__name__):
            check(case, 1)


def check_refused(graph: Any) -> None:
    """Loaders that gather rows by themselves name the way out, on all ranks."""
    loader = NeighborLoader(graph, [3], input_nodes=torch.arange(60), batch_size=30)
    for name, batches in {
        "parts of the graph": RandomNodeLoader(graph, 1),
        "a graph for each seed": ShaDowKHopSampler(graph, 2, 30),
        "random nodes": GraphSAINTNodeSampler(graph, 200, log=False),
        "the whole graph": DataLoader([graph]),
        "several loaders at once": ZipLoader([loader, loader], batch_size=30),
    }.items():
        with (
            named_case(name),
            pytest.raises(RemoteRowsError, match='collective_read.* machines="replicate"'),
        ):
            list(batches)
    with named_case("one batch"), pytest.raises(RemoteRowsError, match="collective_read"):
        loader(torch.arange(60))
    with named_case("workers that gather"), pytest.raises(NotImplementedError, match="leave it"):
        NeighborLoader(
            graph, [3], input_nodes=torch.arange(8), num_workers=1, filter_per_worker=True
        )


def check_ingested(folder: Path, group: Group) -> None:
    """Batches of a store that was made of files."""
    random = np.random.default_rng(0)
    x = random.random((60, 8), dtype=np.float32)
    if group.machines.rank == 0:
        np.save(folder / "x.npy", x)
        np.save(folder / "edges.npy", random.integers(60, size=(2, 400)))
        nodes = NodeFiles(num_nodes=60, tables={"x": folder / "x.npy"})
        edges = EdgeFiles(folder / "edges.npy")
        Store.ingest(folder / "store", nodes=nodes, edges=edges, progress=False)
    dist.barrier()
    batches = []
    for machines in ("shard", "replicate"):
        store = Store.load(folder / "store", group=group, machines=machines)
        is_split = isinstance(store.node_table("x"), DistributedTable)
        assert is_split == (machines == "shard")
        torch.manual_seed(group.machines.rank)
        pair = peergraph_pyg.stores(store)
        seeds = _seeds(60, group.machines)
        loader = NeighborLoader(pair, [3, 2], input_nodes=seeds, batch_size=4, shuffle=True)
        batches.append([(b.n_id, b.edge_index, b.x) for b in loader])
        store.close()
    assert len(batches[0]) == len(batches[1]) > 0
    for mine, other in zip(*batches, strict=True):
        assert all(map(torch.equal, mine, other))
        assert torch.equal(mine[2], torch.from_numpy(x)[mine[0]])
