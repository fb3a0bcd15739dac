"""The compiled kernels as operators: numbers keyed by (seed, row id, column), without autograd.

All take a seed as an integer or, in `device_seed`, as a tensor [1] int64 on the device of the rows;
then the integer is ignored.
"""

from __future__ import annotations

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.torch_operator import kernel
from peergraph.memory.device.launching import launch_on

DISTRIBUTIONS: dict[str, _C.Distribution] = dict(_C.Distribution.__members__)
"""Uniform in [0, 1), standard normal, and exponential of rate 1, by name."""


def _empty_rows(row_ids: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(row_ids.numel(), columns, dtype=dtype, device=row_ids.device)


@kernel(_empty_rows)
def fill_random(
    distribution: str,
    seed: int,
    row_ids: Tensor,
    columns: int,
    dtype: torch.dtype,
    device_seed: Tensor | None = None,
) -> Tensor:
    """Returns one number for each row and column: [rows, columns].

    Args:
        distribution: a key of :data:`DISTRIBUTIONS`.
        row_ids: [rows] int64, contiguous; equal ids have equal numbers.
        dtype: float32, float64, float16 or bfloat16; narrower ones have the same numbers with
            fewer digits.
    """
    out = _empty_rows(row_ids, columns, dtype)
    _C.fill_random(
        seed=seed,
        device_seed=device_seed,
        row_ids=row_ids,
        distribution=DISTRIBUTIONS[distribution],
        out=out,
        launch=launch_on(out.device),
    )
    return out


def _empty_like_x(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@kernel(_empty_like_x)
def dropout_rows(
    x: Tensor, p: float, seed: int, row_ids: Tensor, device_seed: Tensor | None = None
) -> Tensor:
    """Returns 0 with probability `p` and ``x / (1 - p)`` otherwise, by element.

    Args:
        x: [rows, ...], contiguous; float32, float64, float16 or bfloat16.
        row_ids: [rows] int64, contiguous.
    """
    out = torch.empty_like(x)
    scale = 1 / (1 - p) if p < 1 else 0.0
    _C.dropout_rows(
        seed=seed,
        device_seed=device_seed,
        row_ids=row_ids,
        p=p,
        scale=scale,
        x=x,
        out=out,
        launch=launch_on(x.device),
    )
    return out


@kernel(_empty_rows)
def keep_rows(
    p: float,
    seed: int,
    row_ids: Tensor,
    columns: int,
    dtype: torch.dtype,
    device_seed: Tensor | None = None,
) -> Tensor:
    """Returns the mask of :func:`dropout_rows`: 0 with probability `p`, else 1; [rows, columns]."""
    out = _empty_rows(row_ids, columns, dtype)
    _C.dropout_rows(
        seed=seed,
        device_seed=device_seed,
        row_ids=row_ids,
        p=p,
        scale=1.0,
        x=None,
        out=out,
        launch=launch_on(out.device),
    )
    return out
