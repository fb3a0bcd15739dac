"""The synthetic graph: sizes, repeatability, learnable labels."""

from __future__ import annotations

import numpy as np
import pytest

from peergraph_demo import products
from peergraph_demo.inputs import to_pyg
from peergraph_demo.products import NUM_CLASSES, NUM_EDGES, NUM_NODES, products_graph


def test_sizes_and_labels() -> None:
    graph = products_graph(0.002, progress=False)
    graph.check()
    assert graph.num_nodes == int(NUM_NODES * 0.002)
    assert graph.num_edges == int(NUM_EDGES / NUM_NODES * graph.num_nodes)
    assert (graph.num_classes, graph.x.shape[1]) == (NUM_CLASSES, 100)
    destination = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    homophily = (graph.y[destination] == graph.y[graph.indices]).mean()
    assert homophily == pytest.approx(0.7 + 0.3 / NUM_CLASSES, abs=0.01)
    degrees = np.bincount(graph.indices, minlength=graph.num_nodes)
    assert degrees.max() > 10 * degrees.mean()


def test_same_seed_same_graph() -> None:
    first, again, other = (products_graph(0.001, seed=s, progress=False) for s in (1, 1, 2))
    for key in ("indptr", "indices", "x", "y", "train_mask", "test_mask"):
        assert (getattr(first, key) == getattr(again, key)).all()
    assert (first.indices != other.indices).any()


def test_smallest_scale_and_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_CHUNK_NODES", 50)
    graph = products_graph(0.0001, progress=False)
    graph.check()
    assert graph.num_nodes == 244


def test_pyg_data_uses_directed_edges_both_ways() -> None:
    graph = products_graph(0.0001, progress=False)
    data = to_pyg(graph)
    assert data.edge_index.shape == (2, 2 * graph.num_edges)
    pairs = list(zip(*data.edge_index.tolist(), strict=True))
    forward, backward = pairs[: graph.num_edges], pairs[graph.num_edges :]
    assert [(d, s) for s, d in forward] == backward
    for v in (0, 17, 243):
        sources = graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist()
        assert [s for s, d in forward if d == v] == sources
    graph.directed = False
    assert to_pyg(graph).edge_index.shape == (2, graph.num_edges)
