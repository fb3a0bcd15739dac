"""From the reads of one epoch to those of another: what was read once is rarely read again, and
some of what was not read is.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Above, a count says enough by itself.
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
    # Few rows estimate badly: a rarely read one is never taken for one that was read more.
    rare = torch.minimum(again, times + 1)[counts.clamp(max=_RARE - 1)]
    return torch.where(counts < _RARE, rare, counts.double())
