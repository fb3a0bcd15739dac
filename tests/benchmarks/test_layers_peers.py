"""What the benchmark of layers gives the peers is the layers' own work."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch
from tests.benchmarks.running import BENCHMARKS


def test_csr_and_coo_are_the_same_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_geometric")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    layers = importlib.import_module("layers")
    destination = torch.arange(9).repeat_interleave(torch.tensor([3, 0, 5, 1, 1, 2, 0, 4, 2]))
    # One self loop among the edges.
    source = (destination * 5 + torch.arange(18) + 4) % 9
    assert (source == destination).any()
    indptr = torch.searchsorted(destination, torch.arange(10)).int()
    graph = layers.Graph("graph", indptr, torch.stack([source, destination]), None)
    x = torch.randn(9, 6)
    for layer in ("sum", "SAGE", "GCN", "GIN"):
        results = []
        for make in (layers.by_peergraph, layers.by_coo, layers.by_csr):
            torch.manual_seed(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results.append(make(layer, 6, graph)(x))
        torch.testing.assert_close(results[1], results[0])
        torch.testing.assert_close(results[2], results[0])
