"""A pipeline with buffers of a few rows each, so that little data needs many pieces."""

from __future__ import annotations

import pytest
import torch

from peergraph.memory.device import pinned_pipeline
from peergraph.memory.table import staged_rows


def small_buffers(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the pipeline between a GPU and the CPU use small buffers in this test."""
    monkeypatch.setattr(pinned_pipeline, "_BUFFER_BYTES", 64)
    small = pinned_pipeline.PinnedPipeline(device)
    monkeypatch.setattr(staged_rows, "pinned_pipeline", lambda _: small)
