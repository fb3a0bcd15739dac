"""A synthetic graph of the size of ogbn-products, with labels that its structure tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from peergraph_demo.bars import progress_bar
from peergraph_demo.graph import NodeGraph

NUM_NODES = 2_449_029
NUM_EDGES = 61_859_140  # each also used backwards
NUM_FEATURES = 100
NUM_CLASSES = 47
_SPLIT = (0.08, 0.016, 0.1)  # the rest is in no mask
_SAME_CLASS = 0.7
_SIGNAL = 0.2  # scale of the class centres against noise of 1
_HUBS = 2.5  # sources are drawn at the power of a uniform number: larger means larger hubs
_CHUNK_NODES = 1 << 16


def products_graph(scale: float = 1.0, *, seed: int = 0, progress: bool = True) -> NodeGraph:
    """Planted communities with noisy features: 2.45 M nodes and 124 M edges at `scale` 1.

    A node's sources are of its own class with probability 0.7, with hubs in each class; in-degrees
    are log-normal. Features are the centre of the class in noise. The same for the same `scale`
    and `seed`. Built in chunks: no more memory than the graph and a chunk.
    """
    num_nodes = max(int(NUM_NODES * scale), 2 * NUM_CLASSES)
    num_edges = int(NUM_EDGES / NUM_NODES * num_nodes)
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(num_nodes) % NUM_CLASSES)
    indptr = _degrees(rng, num_nodes, num_edges)
    indices = np.empty(num_edges, np.int32)
    x = np.empty((num_nodes, NUM_FEATURES), np.float32)
    centres = rng.normal(0, _SIGNAL, (NUM_CLASSES, NUM_FEATURES)).astype(np.float32)
    # Members of class c: by_class[first[c]:first[c + 1]].
    by_class = np.argsort(y, kind="stable").astype(np.int32)
    first = np.searchsorted(y[by_class], np.arange(NUM_CLASSES + 1))
    for start, stop in _chunks(num_nodes, progress):
        x[start:stop] = rng.standard_normal((stop - start, NUM_FEATURES), np.float32)
        x[start:stop] += centres[y[start:stop]]
        edges = slice(indptr[start], indptr[stop])
        label = np.repeat(y[start:stop], np.diff(indptr[start : stop + 1]))
        indices[edges] = _sources(rng, label, by_class, first)
    masks = _split(rng, num_nodes)
    return NodeGraph(
        name=f"products (synthetic, scale {scale:g})",
        indptr=indptr,
        indices=indices,
        x=x,
        y=y,
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
        class_names=[str(c) for c in range(NUM_CLASSES)],
        directed=True,
    )


def _degrees(rng: np.random.Generator, num_nodes: int, num_edges: int) -> npt.NDArray[np.int64]:
    cumulative = np.cumsum(rng.lognormal(0, 1, num_nodes))
    indptr = np.zeros(num_nodes + 1, np.int64)
    indptr[1:] = np.rint(cumulative * (num_edges / cumulative[-1]))
    return indptr


def _sources(
    rng: np.random.Generator,
    label: npt.NDArray[np.int64],
    by_class: npt.NDArray[np.int32],
    first: npt.NDArray[Any],
) -> npt.NDArray[np.int32]:
    count = len(label)
    other = rng.random(count, np.float32) >= _SAME_CLASS
    label = np.where(other, rng.integers(0, NUM_CLASSES, count), label)
    size = first[label + 1] - first[label]
    place = (rng.random(count) ** _HUBS * size).astype(np.int64)
    sources: npt.NDArray[np.int32] = by_class[first[label] + place]
    return sources


def _split(rng: np.random.Generator, num_nodes: int) -> npt.NDArray[np.bool_]:
    bounds = np.cumsum([max(int(share * num_nodes), 1) for share in _SPLIT])
    parts = np.split(rng.permutation(num_nodes), bounds)
    masks = np.zeros((3, num_nodes), bool)
    for mask, part in zip(masks, parts, strict=False):
        mask[part] = True
    return masks


def _chunks(num_nodes: int, progress: bool) -> Iterator[tuple[int, int]]:
    with progress_bar(num_nodes, "products", "nodes", show=progress) as bar:
        for start in range(0, num_nodes, _CHUNK_NODES):
            stop = min(start + _CHUNK_NODES, num_nodes)
            yield start, stop
            bar.update(stop - start)
