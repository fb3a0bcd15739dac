"""Files of labelled graphs, of one or of several types of nodes, for any framework."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor

from inputs.npz_graphs import load_npz

# Bags of words of several types are projected to this width, which keeps the model small.
_TYPED_WIDTH = 256
_PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class RealGraph:
    """A graph whose nodes of one type have labels.

    Args:
        x: [nodes, columns] float32 by node type.
        edges: [2, edges] int64 by relation (source type, name, destination type).
        target: the type with labels.
        y: [nodes] int64, of the target.
        masks: [nodes] bool by part (train, val, test), of the target.
        classes: number of them.
        edge_type: [edges] int64 of a graph of one type whose edges are of several, else None.
        is_directed: whether some edges lack their reverse.
    """

    x: dict[str, Tensor]
    edges: dict[tuple[str, str, str], Tensor]
    target: str
    y: Tensor
    masks: dict[str, Tensor]
    classes: int
    edge_type: Tensor | None = None
    is_directed: bool = True

    @property
    def is_typed(self) -> bool:
        """Whether there are several types of nodes or relations."""
        return len(self.edges) > 1

    def shuffled(self) -> RealGraph:
        """The same graph with the edges of each relation in another order."""
        generator = torch.Generator().manual_seed(1)
        orders = {
            relation: torch.randperm(ends.shape[1], generator=generator)
            for relation, ends in self.edges.items()
        }
        edges = {relation: ends[:, orders[relation]] for relation, ends in self.edges.items()}
        kinds = self.edge_type
        if kinds is not None:
            (order,) = orders.values()
            kinds = kinds[order]
        return replace(self, edges=edges, edge_type=kinds)


def read_labelled(path: Path) -> RealGraph:
    """A graph of one type; edges as in the file."""
    graph = load_npz(path)
    degree = torch.from_numpy(graph.indptr).diff()
    source = torch.from_numpy(graph.indices).long()
    destination = torch.arange(graph.num_nodes).repeat_interleave(degree)
    return RealGraph(
        {"_N": torch.from_numpy(graph.x).float()},
        {("_N", "_E", "_N"): torch.stack([source, destination])},
        "_N",
        torch.from_numpy(graph.y),
        {part: torch.from_numpy(getattr(graph, f"{part}_mask")) for part in _PARTS},
        graph.num_classes,
        is_directed=bool(graph.directed),
    )


def read_typed(path: Path) -> RealGraph:
    """A graph of several types, with the reverse of each relation that lacks one."""
    with np.load(path, allow_pickle=False) as file:
        counts = {str(t): int(file[f"{t}.num_nodes"]) for t in file["node_types"]}
        edges: dict[tuple[str, str, str], Tensor] = {}
        for name in map(str, file["edge_types"]):
            source, relation, destination = name.split(".")
            edges[source, relation, destination] = _ends(file, f"{name}.")
        pairs = {(source, destination) for source, _, destination in edges}
        for (source, relation, destination), ends in list(edges.items()):
            if source == destination or (destination, source) not in pairs:
                edges[destination, f"rev_{relation}", source] = ends.flip(0)
        target = str(file["target"])
        return RealGraph(
            {t: _features(file, t, count) for t, count in counts.items()},
            edges,
            target,
            torch.from_numpy(file[f"{target}.y"]).long(),
            {part: torch.from_numpy(file[f"{target}.{part}_mask"]) for part in _PARTS},
            int(file["num_classes"]),
        )


def merge_types(graph: RealGraph) -> RealGraph:
    """The same graph with one type of nodes, whose edges have their relation as `edge_type`.

    All types must have as many columns. Labels are -1 at nodes of other types than the target.
    """
    starts, count = {}, 0
    for node_type, x in graph.x.items():
        starts[node_type], count = count, count + x.shape[0]
    ends, types = [], []
    for number, ((source, _, destination), pairs) in enumerate(graph.edges.items()):
        ends.append(pairs + torch.tensor([[starts[source]], [starts[destination]]]))
        types.append(torch.full((pairs.shape[1],), number))
    first = starts[graph.target]
    nodes = slice(first, first + graph.y.numel())
    y = torch.full((count,), -1)
    y[nodes] = graph.y
    masks = {part: torch.zeros(count, dtype=torch.bool) for part in graph.masks}
    for part, mask in graph.masks.items():
        masks[part][nodes] = mask
    x, edges = torch.cat(list(graph.x.values())), torch.cat(ends, 1)
    return RealGraph(
        {"_N": x}, {("_N", "_E", "_N"): edges}, "_N", y, masks, graph.classes, torch.cat(types)
    )


def make_labelled(num_nodes: int = 300, num_edges: int = 1500, seed: int = 0) -> RealGraph:
    """A small graph: isolated nodes, self loops, parallel edges, four types of edges."""
    random = torch.Generator().manual_seed(seed)
    ends = (torch.rand(2, num_edges, generator=random).square() * (num_nodes - 9)).long()
    x = torch.randn(num_nodes, 12, generator=random)
    train = torch.arange(num_nodes) > num_nodes // 2  # Blocks of the user's order have none.
    return RealGraph(
        {"_N": x},
        {("_N", "_E", "_N"): ends},
        "_N",
        x[:, :5].argmax(1),
        {"train": train, "val": ~train, "test": ~train},
        5,
        torch.randint(4, (num_edges,), generator=random),
    )


def make_typed(seed: int = 0) -> RealGraph:
    """A small graph of three types of nodes and five relations."""
    random = torch.Generator().manual_seed(seed)
    counts = {"item": 150, "user": 90, "tag": 6}
    x = {t: torch.randn(count, 12, generator=random) for t, count in counts.items()}
    edges = {}
    for source, name, destination, count in (
        ("user", "buys", "item", 500),
        ("item", "bought", "user", 400),
        ("item", "like", "item", 300),
        ("tag", "on", "item", 100),
        ("item", "has", "tag", 90),
    ):
        ends = [torch.randint(counts[t], (count,), generator=random) for t in (source, destination)]
        edges[source, name, destination] = torch.stack(ends)
    train = torch.arange(150) % 3 > 0
    masks = {"train": train, "val": ~train, "test": ~train}
    return RealGraph(x, edges, "item", x["item"][:, :5].argmax(1), masks, 5)


def _ends(file: Any, prefix: str) -> Tensor:
    indptr = torch.from_numpy(file[f"{prefix}indptr"]).long()
    sources = torch.from_numpy(file[f"{prefix}indices"]).long()
    targets = torch.arange(indptr.numel() - 1).repeat_interleave(indptr.diff())
    return torch.stack([sources, targets])


def _features(file: Any, node_type: str, count: int) -> Tensor:
    """A random projection of a type's bag of words, rows of length 1; ones where it has none."""
    if f"{node_type}.x_data" not in file:
        return torch.ones(count, 1)
    parts = [file[f"{node_type}.x_{part}"] for part in ("data", "indices", "indptr")]
    shape = tuple(int(size) for size in file[f"{node_type}.x_shape"])
    words = scipy.sparse.csr_matrix(tuple(parts), shape=shape, dtype=np.float32)
    generator = torch.Generator().manual_seed(shape[1])
    directions = torch.randn(shape[1], _TYPED_WIDTH, generator=generator)
    return F.normalize(torch.from_numpy(words @ directions.numpy()))
