"""Compares batches by their tensors."""

from __future__ import annotations

import torch


def have_equal_tensors(
    actual: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]
) -> bool:
    """Returns whether there are as many batches, and all of their tensors are equal."""
    return len(actual) == len(expected) and all(
        all(map(torch.equal, a, b)) for a, b in zip(actual, expected, strict=True)
    )
