"""Fixtures of the tests of prefetching."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from peergraph_pyg.loader import patches
from tests.held_resources import prefetch_threads


@pytest.fixture(autouse=True)
def _no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("PEERGRAPH_PREFETCH", raising=False)
    gc.collect()
    before = prefetch_threads()
    yield
    gc.collect()
    assert prefetch_threads() == before


@pytest.fixture
def all_prefetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders of stores on CPUs do as those of stores on GPUs do."""
    monkeypatch.setattr(patches, "prefetches", lambda loader: True)
