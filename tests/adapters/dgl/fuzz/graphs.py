"""Random graphs."""

from __future__ import annotations

from typing import Any

import dgl
import numpy as np
import torch
from torch import Tensor

Draw = np.random.Generator


def one_of(draw: Draw, *options: Any) -> Any:
    """Returns one of the options."""
    return options[int(draw.integers(len(options)))]


def numbers(draw: Draw, *shape: int) -> Tensor:
    """Returns numbers in float64, none close to zero, by which messages are divided."""
    x = torch.tensor(draw.normal(size=shape))
    return x + x.sign() * 0.3


def ids(draw: Draw, bound: int, count: int) -> Tensor:
    """Returns ids with repetitions; none if there is nothing to name."""
    return torch.tensor(draw.integers(0, max(1, bound), count if bound else 0))


def _ends(draw: Draw, sources: int, destinations: int, count: int) -> tuple[Tensor, Tensor]:
    count = count if sources and destinations else 0
    return ids(draw, sources, count), ids(draw, destinations, count)


def _homogeneous(draw: Draw, most: int = 17) -> Any:
    nodes = int(draw.integers(1, most))
    ends = _ends(draw, nodes, nodes, int(one_of(draw, 0, 1, 6, 40)))
    return dgl.graph(ends, num_nodes=nodes)


def _block(draw: Draw) -> Any:
    targets = int(draw.integers(1, 8))
    sources = targets + int(one_of(draw, 0, 3, 9))
    ends = _ends(draw, sources, targets, int(one_of(draw, 0, 5, 30)))
    return dgl.create_block(ends, num_src_nodes=sources, num_dst_nodes=targets)


def _bipartite(draw: Draw) -> Any:
    counts = {"user": int(draw.integers(1, 7)), "item": int(draw.integers(1, 10))}
    ends = _ends(draw, *counts.values(), int(one_of(draw, 0, 5, 30)))
    return dgl.heterograph({("user", "buys", "item"): ends}, num_nodes_dict=counts)


def _heterogeneous(draw: Draw) -> Any:
    counts = {name: int(draw.integers(1, 9)) for name in "abc"}
    ends = [("a", "a"), ("a", "b"), ("b", "a"), ("c", "b")][: int(draw.integers(2, 5))]
    edges = {
        (source, f"r{i}", target): _ends(
            draw, counts[source], counts[target], int(one_of(draw, 0, 4, 20))
        )
        for i, (source, target) in enumerate(ends)
    }
    used = {name: count for name, count in counts.items() if any(name in each for each in ends)}
    return dgl.heterograph(edges, num_nodes_dict=used)


def _batch(draw: Draw) -> Any:
    return dgl.batch([_homogeneous(draw, 6) for _ in range(int(draw.integers(1, 5)))])


WHOLE = [_homogeneous, _homogeneous, _heterogeneous, _batch]
"""Graphs that ``full_graph`` takes."""


def random_graph(draw: Draw, whole: bool) -> Any:
    """Returns a graph; a `whole` one is no block, and has the same nodes on both ends."""
    g = one_of(draw, *WHOLE, *([] if whole else [_block, _bipartite]))(draw)
    return g.int() if draw.random() < 0.25 else g


def has_empty_rows(g: Any) -> bool:
    """Returns whether a reduction may have nothing to reduce. DGL then gives the gradient of an
    extremum to edge or node 0, or has none.
    """
    if any((g.in_degrees(etype=etype) == 0).any() for etype in g.canonical_etypes):
        return True
    return not g.is_block and any((g.batch_num_edges(e) == 0).any() for e in g.canonical_etypes)


def features_of(draw: Draw, g: Any, end: str, etype: Any, shape: tuple[int, ...]) -> Tensor:
    """Returns features of the sources (u), the destinations (v) or the edges (e) of a type."""
    counts = {"u": g.num_src_nodes(etype[0]), "v": g.num_dst_nodes(etype[2])}
    count = g.num_edges(etype) if end == "e" else counts[end]
    return numbers(draw, count, *shape)
