"""A number that tells lists of row numbers apart."""

from __future__ import annotations

import torch
from torch import Tensor

_ODD = (-7046029254386353131, -4658895280553007687)  # splitmix64's multipliers, as int64


def digest_rows(rows: Tensor) -> int:
    """Returns a 64-bit digest of a list of integers and their order, the same on any device.

    Synchronises the device.

    Args:
        rows: [k] int64.
    """
    value = rows * _ODD[0] + torch.arange(1, rows.numel() + 1, device=rows.device) * _ODD[1]
    value = (value ^ (value >> 30)) * _ODD[1]
    value = (value ^ (value >> 27)) * _ODD[0]
    return int((value ^ (value >> 31)).sum())
