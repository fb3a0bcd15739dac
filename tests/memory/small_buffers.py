"""Buffers of a few rows each, so that little data needs many."""

from __future__ import annotations

import pytest
import torch

from peergraph.memory.device import pinned_buffers
from peergraph.memory.table import staged_rows as staging


def small_buffers(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what goes between a GPU and the CPU in this test."""
    small = pinned_buffers.PinnedBuffers(device)
    monkeypatch.setattr(pinned_buffers, "_BUFFER_BYTES", 64)
    monkeypatch.setattr(staging, "pinned_buffers", lambda of: small)
