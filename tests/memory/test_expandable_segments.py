"""The setting of torch's allocator for tensors of many sizes."""

from __future__ import annotations

import pytest
import torch

from peergraph.memory.device.expandable_segments import settings_with_segments
from peergraph.testing import run_ranks


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_CUDA_ALLOC_CONF": ""}, "expandable_segments:True"),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
            "max_split_size_mb:64,expandable_segments:True",
        ),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, None),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"}, None),
    ],
)
def test_other_settings_are_kept(environment: dict[str, str], expected: str | None) -> None:
    assert settings_with_segments({**environment, "HOME": "/"}) == expected


def reserved_mebibytes(free: int) -> int:
    """The most that torch reserves for tensors of growing sizes, with `free` % of a GPU free."""
    from peergraph.memory.device import expandable_segments

    torch.cuda.init()
    torch.cuda.mem_get_info = lambda _: (free, 100)  # type: ignore[assignment]
    expandable_segments.expand_segments_in_little_memory(torch.device("cuda", 0))
    for megabytes in range(64, 128, 4):  # without expandable segments a block for each size
        torch.ones(megabytes << 20, dtype=torch.uint8, device="cuda")
    return torch.cuda.max_memory_reserved() >> 20


@pytest.mark.gpus(1)
def test_freed_memory_is_used_for_larger_tensors_if_little_is_free() -> None:
    [reserved] = run_ranks(reserved_mebibytes, 1, 33, device="cuda")
    assert reserved <= 2 * 128
    [reserved] = run_ranks(reserved_mebibytes, 1, 34, device="cuda")
    assert reserved > 2 * 128
