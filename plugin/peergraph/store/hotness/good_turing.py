"""Estimates the reads of the next epoch from the counts of one epoch (Good and Turing).

A row that was read once is often not read again, and some rows that were not read will be.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Counts from here on are their own estimate.
_RARE = 8


def expected_reads(counts: Tensor) -> Tensor:
    """How often each row is read in another epoch, float64, on the device of the counts.

    Good and Turing's estimate (Good 1953): rows that were read r times are read
    (r + 1) N(r + 1) / N(r) times the next time, N(r) rows having been read r times. The most read
    rows of a few batches, for which N(r + 1) is 0, are read r times again.

    Args:
        counts: [rows] int64, how often each row was read.
    """
    rows = torch.bincount(counts.clamp(max=_RARE + 1), minlength=_RARE + 2).double()
    times = torch.arange(_RARE, dtype=torch.float64, device=counts.device)
    again = (times + 1) * rows[1 : _RARE + 1] / rows[:_RARE].clamp(min=1)
    again = torch.where(rows[1 : _RARE + 1] > 0, again, times)
    # With few rows the estimate is poor: it never exceeds the next higher count.
    rare = torch.minimum(again, times + 1)[counts.clamp(max=_RARE - 1)]
    return torch.where(counts < _RARE, rare, counts.double())
