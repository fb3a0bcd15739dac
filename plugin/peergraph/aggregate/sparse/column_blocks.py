"""Blocks of a matrix's columns whose rows of features stay in the L2 cache of a GPU.

A sum over all columns reads rows from all of `x`; where these do not fit the cache, though each is
read many times, one block of columns after the other is quicker (MG-GCN 4.1 has blocks of ranks).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import CsrTensors
from peergraph.aggregate.kernels.spmm import add_spmm, spmm
from peergraph.memory.device.default_machine import WORK

SLICE_BYTES = 512
"""The most bytes of a row that a kernel sums at a time."""


def column_block_count(matrix: CsrTensors, x: Tensor) -> int:
    """Returns in how many blocks of columns the sums of `x` are computed; 1: in one go."""
    rows, edges = matrix.num_rows, matrix.num_edges
    if x.device.type != "cuda" or rows == 0 or edges < WORK.block_reads * matrix.num_columns:
        return 1
    l2 = _l2_bytes(x.device)
    if matrix.num_columns * min(x.shape[1] * x.itemsize, SLICE_BYTES) < WORK.blocked_share * l2:
        return 1
    # The same for all widths, so that the matrix has one set of blocks.
    most = -int(-matrix.num_columns * SLICE_BYTES // (WORK.block_share * l2))
    return max(1, min(most, edges // (rows * WORK.block_edges)))


@cache
def _l2_bytes(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def add_in_blocks(
    out: Tensor | None, blocks: Sequence[CsrTensors], x: Tensor, e: Tensor | None, message: str
) -> Tensor:
    """Adds the sums of messages over blocks of columns, which follow each other in `x`, to `out`.

    Returns `out`, or a new tensor in place of None.
    """
    parts = torch.split(x, [block.num_columns for block in blocks])
    for block, part in zip(blocks, parts, strict=True):
        if out is None:
            out = spmm(part, e, block, message, False)
        else:
            add_spmm(out, part, e, block, message)
    assert out is not None
    return out
