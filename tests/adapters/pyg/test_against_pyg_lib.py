"""Batches of random settings beside those of PyG's own sampler, where pyg-lib is there to run it.

What is drawn leaves no choice (all neighbours, or the most recent ones), and lists have the order
that pyg-lib asks for: batches must be the same to the last edge, in the same order.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.sampler import NegativeSampling

import peergraph_pyg
from tests.pairwise import pairwise

pytestmark = [
    pytest.mark.skipif(not torch_geometric.typing.WITH_PYG_LIB, reason="pyg-lib is not installed"),
    pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional graph"),
]

RELATIONS = [
    ("a", "to", "b"),
    ("b", "rev", "a"),
    ("a", "self", "a"),
    ("b", "x", "c"),
    ("c", "y", "a"),
    ("b", "none", "a"),
]


class Settings:
    """A graph, a loader and its options, made of a number."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        self.generator = torch.Generator().manual_seed(number)
        self.typed = self.chance(0.6)
        self.options: dict[str, Any] = {"is_sorted": True, "disjoint": self.chance(0.4)}
        if self.chance(0.15):
            self.options["subgraph_type"] = "bidirectional"
        self.hops = self.random.choice([1, 2, 3])
        self.fanouts: Any = [-1] * self.hops
        if self.chance(0.4):
            self.options["time_attr"] = self.random.choice(["stamp", "edge_stamp"])
        self.data: Any = self.typed_data() if self.typed else self.plain_data()
        if self.time and self.chance(0.6):
            self.options["temporal_strategy"] = "last"
            self.fanouts = [self.random.choice([1, 2, 3]) for _ in range(self.hops)]
        elif self.typed and self.chance(0.5):
            self.fanouts = {t: self.random.choices([0, -1], k=self.hops) for t in RELATIONS}
        self.links = self.chance(0.5)
        self.kind = LinkNeighborLoader if self.links else NeighborLoader
        self.count = self.random.choice([1, 17])
        (self.choose_links if self.links else self.choose_nodes)()

    @property
    def time(self) -> str | None:
        return self.options.get("time_attr")

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def ids(self, below: int, count: int) -> Tensor:
        return torch.randint(below, (count,), generator=self.generator)

    def floats(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator)

    def permutation(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator)

    def edges(self, stamps: Tensor, destinations: int, count: int) -> dict[str, Tensor]:
        """Sorted by destination, and by time where it counts."""
        index = torch.stack([self.ids(len(stamps), count), self.ids(destinations, count)])
        edge_stamp = self.permutation(count)
        order = {"stamp": stamps[index[0]], "edge_stamp": edge_stamp}.get(str(self.time), index[0])
        order = order.argsort(stable=True)
        order = order[index[1][order].argsort(stable=True)]
        return {
            "edge_index": index[:, order],
            "edge_stamp": edge_stamp[order],
            "edge_attr": self.floats(count, 2),
        }

    def plain_data(self) -> Data:
        nodes = self.random.choice([2, 7, 40])
        stamp = self.permutation(nodes)
        edges = self.edges(stamp, nodes, self.random.choice([0, 1, 5, 200]))
        return Data(x=self.floats(nodes, 3), y=self.ids(4, nodes), stamp=stamp, name="it", **edges)

    def typed_data(self) -> HeteroData:
        data = HeteroData()
        sizes = {"a": self.random.choice([1, 6, 30]), "b": self.random.choice([1, 20])}
        sizes["c"] = self.random.choice([0, 5])
        for node_type, size in sizes.items():
            data[node_type].x = self.floats(size, 4)
            data[node_type].stamp = self.permutation(size)
        for edge_type in RELATIONS:
            source, name, destination = edge_type
            none = name == "none" or not sizes[source] or not sizes[destination]
            count = 0 if none else self.random.choice([0, 3, 120])
            stamps = data[source].stamp if sizes[source] else torch.zeros(1)
            edges = self.edges(stamps, max(sizes[destination], 1), count)
            for key, value in edges.items():
                data[edge_type][key] = value
        return data

    def choose_nodes(self) -> None:
        """Those given twice are rows of their own; pyg-lib numbers rows wrongly after them."""
        size = self.data["b"].num_nodes if self.typed else self.data.num_nodes
        self.count = size
        nodes: Any = self.permutation(size)
        form = self.random.choice(["all", "mask", "ids", "int32", "list"])
        if form == "mask":
            nodes = torch.ones(size, dtype=torch.bool)
        elif form == "int32":
            nodes = nodes.int()
        elif form == "list":
            nodes = nodes.tolist()
        elif form == "all":
            nodes = None
        self.options["input_nodes"] = ("b", nodes) if self.typed else nodes
        if self.time == "edge_stamp" or (self.time and self.chance(0.5)):
            self.options["input_time"] = self.ids(40, size)

    def choose_links(self) -> None:
        parts = [self.data["a"], self.data["b"]] if self.typed else [self.data] * 2
        ends = [part.num_nodes for part in parts]
        links = torch.stack([self.ids(size, self.count) for size in ends])
        links = links.int() if self.chance(0.2) else links
        self.options["edge_label_index"] = (RELATIONS[0], links) if self.typed else links
        negatives: list[Any] = [
            None,
            "binary",
            "triplet",
            NegativeSampling("binary", 2.5),
            NegativeSampling("triplet", 2),
            NegativeSampling("binary", 1.5, self.floats(ends[0]), self.floats(ends[1])),
            NegativeSampling("triplet", 3, None, self.floats(ends[1])),
        ]
        chosen = self.random.choice(negatives)
        self.options["neg_sampling"] = chosen
        if self.chance(0.5) and "triplet" not in str(chosen):
            self.options["edge_label"] = self.ids(3, self.count)
        if self.time:
            self.options["edge_label_time"] = self.ids(200, self.count)

    def batches(self, data: Any) -> list[Any]:
        loader = self.kind(data, self.fanouts, batch_size=4, **self.options)
        results = []
        for first in range(0, min(self.count, 12), 4):
            torch.manual_seed(first)
            results.append(loader(list(range(first, min(first + 4, self.count)))))
        return results


def same(actual: Any, expected: Any) -> None:
    for mine, other in zip(actual.stores, expected.stores, strict=True):
        assert mine._key == other._key
        assert list(mine.keys()) == list(other.keys())
        for key, value in other.items():
            assert type(mine[key]) is type(value), key
            if isinstance(value, Tensor):
                assert mine[key].dtype == value.dtype, key
                assert torch.equal(mine[key].cpu(), value), key
            else:
                assert mine[key] == value, key


@pytest.mark.parametrize("block", range(6))
def test_same_batches(block: int, device: torch.device) -> None:
    for number in range(25 * block, 25 * block + 25):
        settings = Settings(number)
        shared = peergraph_pyg.share(settings.data.clone(), device=device)
        batches = settings.batches(shared), settings.batches(settings.data)
        for actual, expected in zip(*batches, strict=True):
            same(actual, expected)


@pytest.mark.parametrize(
    ("of", "replace", "strategy"),
    pairwise(["stamp", "edge_stamp"], [False, True], ["uniform", "last"]),
)
def test_as_many_of_each_target(
    of: str, replace: bool, strategy: str, device: torch.device
) -> None:
    """Where there is a choice: what may be chosen, and how much of it."""
    settings = Settings(0)
    settings.options["time_attr"] = of
    settings.random.seed(3)
    data = settings.plain_data()
    times = settings.ids(200, data.num_nodes)
    options = {"time_attr": of, "input_time": times, "input_nodes": torch.arange(data.num_nodes)}
    results = []
    for source in (peergraph_pyg.share(data.clone(), device=device), data):
        sets: list[set[int]] = [set() for _ in range(data.num_nodes)]
        loader = NeighborLoader(
            source, [2], replace=replace, temporal_strategy=strategy, is_sorted=True, **options
        )
        counts = []
        for draw in range(60):
            torch.manual_seed(draw)
            batch = loader(torch.arange(data.num_nodes))
            counts.append(torch.bincount(batch.edge_index[1].cpu(), minlength=200)[:200].tolist())
            for edge, target in zip(batch.e_id.tolist(), batch.edge_index[1].tolist(), strict=True):
                sets[target].add(edge)
        results.append((counts, sets))
    assert results[0][0] == results[1][0]
    if strategy == "last":
        assert results[0][1] == results[1][1]
