"""Files of labelled graphs as DGL's graphs, for the trainings of tasks.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl
import torch
from inputs.real_graphs import RealGraph, read_labelled, read_typed

_HELD_OUT = 0.05  # of the edges, for each of validation and test


def labelled(path: Path) -> Any:
    """A graph of one type for `nodes` and `graphbolt`; edges of a directed one go both ways."""
    graph = read_labelled(path)
    (edges,) = graph.edges.values()
    g = dgl.graph((edges[0], edges[1]), num_nodes=graph.y.numel())
    if graph.is_directed:
        g = dgl.add_reverse_edges(g)
    g.ndata["feat"] = graph.x["_N"]
    _set_labels(g, g.ndata, graph)
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
    val, test, train = edges.split([held_out, held_out, edges.shape[1] - 2 * held_out], dim=1)
    both_ways = torch.cat([train, train.flip(0)], dim=1)
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
    graph = read_typed(path)
    edges = {relation: (ends[0], ends[1]) for relation, ends in graph.edges.items()}
    counts = {t: x.shape[0] for t, x in graph.x.items()}
    g = dgl.heterograph(edges, num_nodes_dict=counts)
    for node_type, x in graph.x.items():
        g.nodes[node_type].data["feat"] = x
    _set_labels(g, g.nodes[graph.target].data, graph)
    g.target = graph.target
    return g


def _set_labels(g: Any, data: Any, graph: RealGraph) -> None:
    data["label"] = graph.y
    for part, mask in graph.masks.items():
        data[f"{part}_mask"] = mask
    g.classes = graph.classes


Load = Callable[[Path], Any]
