"""The free memory of the host as the environment announces it."""

from __future__ import annotations

import pytest

from peergraph.memory.region.free_memory import free_host_memory


def test_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEERGRAPH_HOST_MEMORY", "123456")
    assert free_host_memory() == 123456


@pytest.mark.parametrize("text", ["200G", "-1", ""])
def test_announced_wrongly(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("PEERGRAPH_HOST_MEMORY", text)
    with pytest.raises(ValueError, match="PEERGRAPH_HOST_MEMORY must be a number of bytes, got"):
        free_host_memory()
