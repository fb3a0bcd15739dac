"""Sums the gradients of equal rows, in the same order in every run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import launch_on

# Longer runs are summed in pieces: one group of lanes would take long for a very frequent row.
_PIECE = 128


@dataclass(frozen=True)
class SparseRows:
    """Values of some rows: keys int64 [n] and values [n, width], on one device."""

    keys: Tensor
    values: Tensor

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.keys.numel()


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of sums and optimizer state: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def coalesce(rows: SparseRows) -> SparseRows:
    """Returns each key once, ascending, with the sum of its values in order of appearance.

    Values may have any dtype of :data:`DTYPES`; sums have the accumulator's dtype. CPU and GPU give
    the same bits. Synchronises, since the number of keys must be known.
    """
    if rows.count == 0:
        return SparseRows(rows.keys, rows.values.to(accumulator(rows.values.dtype)))
    ordered, positions = rows.keys.sort(stable=True)
    keys, counts = torch.unique_consecutive(ordered, return_counts=True)
    values = rows.values.contiguous()
    if keys.numel() < rows.count and int(counts.max()) > _PIECE:
        values, positions, counts = _sum_pieces(values, positions, counts)
    return SparseRows(keys, _sum_runs(values, positions, counts))


def _sum_pieces(values: Tensor, positions: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums pieces of the runs, at most _PIECE long. Returns the sums of the pieces as the values of
    shorter runs, with their positions and counts.
    """
    pieces = (counts + _PIECE - 1) // _PIECE
    lengths = torch.full((int(pieces.sum()),), _PIECE, device=counts.device)
    last = pieces.cumsum(0) - 1
    lengths[last] = counts - (pieces - 1) * _PIECE
    sums = _sum_runs(values, positions, lengths)
    return sums, torch.arange(len(sums), device=sums.device), pieces


def _sum_runs(values: Tensor, positions: Tensor, counts: Tensor) -> Tensor:
    offsets = torch.zeros(counts.numel() + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=offsets[1:])
    shape = (counts.numel(), values.size(1))
    out = torch.empty(shape, dtype=accumulator(values.dtype), device=values.device)
    _C.sum_runs(values, positions, offsets, out, launch_on(values.device))
    return out
