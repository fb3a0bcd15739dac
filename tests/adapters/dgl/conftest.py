"""Fixtures shared by the tests of the DGL adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch


@pytest.fixture
def share(device: torch.device) -> Iterator[Callable[[Any], Any]]:
    """Shares a graph, returns its store, and closes the store at the end of the test."""
    peergraph_dgl = pytest.importorskip("peergraph_dgl", exc_type=ImportError)
    stores: list[Any] = []

    def to_store(g: Any) -> Any:
        stores.append(peergraph_dgl.store_of(peergraph_dgl.share(g, device=device)))
        return stores[-1]

    yield to_store
    for store in stores:
        store.close()


@pytest.fixture(autouse=True)
def _whole_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default cuDNN's LSTMs round factors to TF32, which is farther from the CPU's results
    than a mistake may be."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
