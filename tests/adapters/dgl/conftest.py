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


@pytest.fixture
def shared(device: torch.device) -> Iterator[Callable[[Any], Any]]:
    """Shares a graph, returns it, and closes its store at the end of the test."""
    peergraph_dgl = pytest.importorskip("peergraph_dgl", exc_type=ImportError)
    graphs: list[Any] = []

    def to_shared(g: Any) -> Any:
        graphs.append(peergraph_dgl.share(g, device=device))
        return graphs[-1]

    yield to_shared
    for g in graphs:
        peergraph_dgl.store_of(g).close()


@pytest.fixture(params=["library", "tensors"])
def made_of(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> str:
    """Runs a test on the CPU twice: with DGL's own graph index, and with the one used on a GPU."""
    blocks = pytest.importorskip("peergraph_dgl.loader.blocks", exc_type=ImportError)
    if request.param == "tensors":
        if device.type != "cpu":
            pytest.skip("blocks on a GPU are made of tensors anyway")
        monkeypatch.setattr(blocks, "is_unsupported_by_dgl", lambda _: True)
    return str(request.param)


@pytest.fixture(autouse=True)
def _whole_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default cuDNN's LSTMs round factors to TF32, which is farther from the CPU's results
    than a mistake may be."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
