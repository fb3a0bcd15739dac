"""Copies rows of bytes, in words of up to 8 bytes if sizes and addresses allow it."""

from __future__ import annotations

import torch


def copy_rows(target: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> None:
    """Writes rows at positions of a matrix.

    Args:
        target: uint8 [n, row bytes], contiguous.
        positions: int64 [m], distinct.
        rows: uint8 [m, row bytes], contiguous, on the same device.
    """
    word = _widest_word(target, rows)
    # torch copies one element at a time: with bytes, eight times as many as with words of int64.
    target.view(word).index_copy_(0, positions, rows.view(word))


def select_rows(rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Returns the rows at positions of a matrix: uint8 [m, row bytes].

    Args:
        rows: uint8 [n, row bytes], contiguous.
        positions: int64 [m].
    """
    return rows.view(_widest_word(rows)).index_select(0, positions).view(torch.uint8)


def _widest_word(*matrices: torch.Tensor) -> torch.dtype:
    """Returns the widest dtype whose size divides the row bytes and addresses of all matrices."""
    for dtype in (torch.int64, torch.int32, torch.int16):
        size = dtype.itemsize
        if all(m.size(1) % size == 0 and m.data_ptr() % size == 0 for m in matrices):
            return dtype
    return torch.uint8
