"""Some of the programs; ``python -m tests.adapters.dgl.fuzz`` runs as many as you like."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from peergraph.testing import run_ranks

from .situations import difference, on_device, on_ranks, situation

pytestmark = pytest.mark.usefixtures("one_thread_a_rank")


def test_programs_on_a_device(device: torch.device) -> None:
    for seed in range(150):
        text = on_device(seed, device)
        assert not text, f"program {seed}: {text}"


@pytest.mark.parametrize(
    ("world_size", "options"),
    [(1, {}), (3, {}), (2, {"offload": True, "num_chunks": 2})],
    ids=["one rank", "three ranks", "offloaded"],
)
def test_programs_on_partitioned_graphs(world_size: int, options: dict[str, Any]) -> None:
    seeds = list(range(world_size * 1000, world_size * 1000 + 40))
    for outcomes in run_ranks(on_ranks, world_size, seeds, options, timeout_s=200):
        for seed, actual in zip(seeds, outcomes, strict=True):
            text = difference(*situation(seed, whole=True), actual, "partitioned")
            assert not text, f"program {seed}: {text}"
