"""Fixtures shared by the tests of the DGL adapter."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _whole_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default cuDNN's LSTMs round factors to TF32, which is farther from the CPU's results
    than a mistake may be."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
