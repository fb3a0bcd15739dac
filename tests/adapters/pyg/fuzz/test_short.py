"""Some of the situations; ``python -m tests.adapters.pyg.fuzz`` runs as many as you like."""

from __future__ import annotations

import pytest
import torch

from .situations import run


@pytest.mark.parametrize(("kind", "count"), [("layers", 100), ("typed", 60), ("captured", 30)])
def test_results_are_those_of_plain_pyg(kind: str, count: int, device: torch.device) -> None:
    for seed in range(count):
        difference = run(kind, seed, str(device))
        assert not difference, f"{kind} {seed}: {difference}"
