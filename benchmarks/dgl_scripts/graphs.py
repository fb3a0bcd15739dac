"""Files of labelled graphs as DGL's graphs, for the trainings of tasks.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph_demo.npz_file import load_npz

# Bags of words of several types are projected to this width, which keeps the model small.
_TYPED_WIDTH = 256
_HELD_OUT = 0.05  # of the edges, for each of validation and test


def labelled(path: Path) -> Any:
    """A graph of one type for `nodes` and `graphbolt`; edges of a directed one go both ways."""
    graph = load_npz(path)
    degree = torch.from_numpy(graph.indptr).diff()
    source = torch.from_numpy(graph.indices).long()
    destination = torch.arange(graph.num_nodes).repeat_interleave(degree)
    g = dgl.graph((source, destination), num_nodes=graph.num_nodes)
    if graph.directed:
        g = dgl.add_reverse_edges(g)
    g.ndata["feat"] = torch.from_numpy(graph.x).float()
    g.ndata["label"] = torch.from_numpy(graph.y)
    for part in ("train", "val", "test"):
        g.ndata[f"{part}_mask"] = torch.from_numpy(getattr(graph, f"{part}_mask"))
    g.classes = graph.num_classes
    return g


def with_held_out_edges(path: Path) -> Any:
    """A graph for `links`: edge i of the first half has its reverse in the second half.

    ``pairs`` has, for validation and test, edges that are not in the graph and as many random
    pairs.
    """
    whole = labelled(path)
    source, destination = whole.edges()
    once = source < destination
    edges = torch.stack([source[once], destination[once]]).unique(dim=1)
    generator = torch.Generator().manual_seed(0)
    edges = edges[:, torch.randperm(edges.shape[1], generator=generator)]
    held_out = int(_HELD_OUT * edges.shape[1])
    val, test, kept = edges.split([held_out, held_out, edges.shape[1] - 2 * held_out], dim=1)
    both_ways = torch.cat([kept, kept.flip(0)], dim=1)
    g = dgl.graph((both_ways[0], both_ways[1]), num_nodes=whole.num_nodes())
    g.ndata["feat"] = whole.ndata["feat"]
    anything = torch.randint(0, whole.num_nodes(), (2, 2 * held_out), generator=generator)
    g.pairs = {
        "val": torch.cat([val, anything[:, :held_out]], dim=1),
        "test": torch.cat([test, anything[:, held_out:]], dim=1),
    }
    return g


def typed(path: Path) -> Any:
    """A graph of several types for `types`, with the reverse of each relation that lacks one."""
    with np.load(path, allow_pickle=False) as file:
        counts = {str(t): int(file[f"{t}.num_nodes"]) for t in file["node_types"]}
        edges: dict[tuple[str, str, str], tuple[Tensor, Tensor]] = {}
        for name in map(str, file["edge_types"]):
            source, relation, destination = name.split(".")
            ends = _ends(file, f"{name}.")
            edges[source, relation, destination] = ends
        pairs = {(source, destination) for source, _, destination in edges}
        for (source, relation, destination), ends in list(edges.items()):
            if source == destination or (destination, source) not in pairs:
                edges[destination, f"rev_{relation}", source] = ends[::-1]
        g = dgl.heterograph(edges, num_nodes_dict=counts)
        for node_type, count in counts.items():
            g.nodes[node_type].data["feat"] = _features(file, node_type, count)
        target = str(file["target"])
        data = g.nodes[target].data
        data["label"] = torch.from_numpy(file[f"{target}.y"]).long()
        for part in ("train", "val", "test"):
            data[f"{part}_mask"] = torch.from_numpy(file[f"{target}.{part}_mask"])
        g.target, g.classes = target, int(file["num_classes"])
    return g


Load = Callable[[Path], Any]


def _ends(file: Any, prefix: str) -> tuple[Tensor, Tensor]:
    indptr = torch.from_numpy(file[f"{prefix}indptr"]).long()
    sources = torch.from_numpy(file[f"{prefix}indices"]).long()
    return sources, torch.arange(indptr.numel() - 1).repeat_interleave(indptr.diff())


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
