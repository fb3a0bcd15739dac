"""Estimates the reads of the next epoch from the counts of one epoch (Good and Turing).

A row that was read once is often not read again, and some rows without reads will be read.
"""

from __future__ import annotations

import torch
from torch import Tensor

# A count from this number on is itself the estimate.
_RARE = 8


def expected_reads(counts: Tensor) -> Tensor:
    """Estimates how often each row is read in another epoch: float64, on the device of the counts.

    Good and Turing's estimate (Good 1953): a row that was read r times will be read
    (r + 1) N(r + 1) / N(r) times, where N(r) is the number of rows that were read r times. Where
    N(r + 1) is 0, as for the hottest rows of a few batches, the estimate is r.

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
