"""Dropout keyed by (seed, row, column): no mask is kept, backward makes it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.fullgraph.exchange.route import linear
from peergraph.fullgraph.random.rows import Rows, random_op
from peergraph.fullgraph.random.seeds import Seed
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows
from peergraph.fullgraph.tensor.conversions import take_rows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.registry import Rule, chunk_rule, function_rule

aten = torch.ops.aten

_ALPHA = 1.7580993408473766  # of SELU: its scale times its alpha


def drop_rows(x: Tensor, p: float, seed: Seed, ids: Tensor | None = None) -> Tensor:
    """Returns rows with elements dropped out. Differentiable.

    Args:
        x: partitioned, or plain.
        p: probability of zeros.
        seed: of the mask.
        ids: [rows] of a plain tensor, the user's; None: 0, 1, 2 and so on.
    """
    place = (x.row_layout, x.partitioned_dim) if isinstance(x, PartitionedTensor) else None

    def drop(rows: Tensor) -> Tensor:
        keyed = Rows(rows if place is None else take_rows(rows, *place), ids)
        return keyed.wrap(keyed.dropout(p, seed))

    return linear(x, drop, drop) if torch.is_grad_enabled() else drop(x)


@function_rule(F.dropout)
def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """As ``torch.nn.functional.dropout``, keyed by the user's row.

    Element (r, c) is kept or dropped by (seed, r, c) alone: equal at every number of ranks, on the
    CPU and on the GPU and in every floating-point type. The seed is drawn from torch's default
    generator of the CPU at each call. A dropped element is 0, even if it was NaN.
    """
    if _keeps_all(x, p, training):
        return x
    seed = Rows(x).seed() if p < 1 else 0
    result = drop_rows(x, p, seed)
    return x.copy_(result) if inplace else result


@chunk_rule(F.dropout, draws=True)
def _dropout_of_chunk(
    input: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    seeds: Sequence[Seed],
) -> ChunkRows | None:
    if type(input) is not ChunkRows or inplace or input.partitioned_dim:
        return None
    if not training or p == 0 or input.rows.numel() == 0:
        return input
    if p >= 1 or len(seeds) != 1 or isinstance(seeds[0], Tensor):
        return None
    return input.with_rows(drop_rows(input.rows, p, seeds[0], input.row_layout.positions))


@function_rule(F.dropout1d, F.dropout2d, F.dropout3d)
def feature_dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """As ``torch.nn.functional.dropout1d``, ..., keyed by the user's row and the channel.

    Channels are dimension 1; a tensor [channels, length] loses whole rows.
    """
    if _keeps_all(input, p, training):
        return input
    mask = _channel_mask(input, p)
    mask = mask * (1 / (1 - p)) if p < 1 else mask
    return input.mul_(mask) if inplace else input * mask


@function_rule(F.alpha_dropout)
def alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """As ``torch.nn.functional.alpha_dropout``, keyed by the user's row."""
    if _keeps_all(input, p, training):
        return input
    rows = Rows(input)
    mask = rows.keep(p, rows.seed() if p < 1 else 0)
    return _with_alpha(input, rows.wrap(mask), p, inplace)


@function_rule(F.feature_alpha_dropout)
def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """As ``torch.nn.functional.feature_alpha_dropout``, keyed by the user's row and the channel."""
    if _keeps_all(input, p, training):
        return input
    return _with_alpha(input, _channel_mask(input, p), p, inplace)


def _register_built_in(name: str, rule: Rule) -> None:
    """Registers the rule of a function of `F` for that of `torch`, and that in place."""
    function_rule(getattr(torch, name))(lambda input, p, train: rule(input, p, train))
    function_rule(getattr(torch, f"{name}_"))(lambda input, p, train: rule(input, p, train, True))


_register_built_in("dropout", dropout)
_register_built_in("feature_dropout", feature_dropout)
_register_built_in("alpha_dropout", alpha_dropout)
_register_built_in("feature_alpha_dropout", feature_alpha_dropout)


@random_op(aten.native_dropout.default)
def _native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    rows = Rows(input)
    if train is False:
        mask = torch.ones_like(rows.local, dtype=torch.bool)
        return rows.wrap(rows.local.clone()), rows.wrap(mask)
    seed = rows.seed()
    return rows.wrap(rows.dropout(p, seed)), rows.wrap(rows.keep(p, seed, torch.bool))


def _channel_mask(x: Tensor, p: float) -> Tensor:
    if x.dim() < 2:
        raise RuntimeError(f"feature dropout needs at least 2 dimensions, got {x.dim()}")
    rows = Rows(x)
    return rows.keep_channels(p, rows.seed() if p < 1 else 0, 2 if x.dim() > 2 else 1)


def _with_alpha(x: Tensor, keep: Tensor, p: float, inplace: bool) -> Tensor:
    """Keeps mean and variance of SELU's outputs (Klambauer et al. 2017)."""
    if p == 1:
        return x.mul_(0.0) if inplace else x * 0.0
    scale = ((_ALPHA**2 * p + 1) * (1 - p)) ** -0.5
    shift = (keep - 1) * (_ALPHA * scale) + _ALPHA * scale * p
    return x.mul_(keep * scale).add_(shift) if inplace else x * (keep * scale) + shift


def _keeps_all(x: Tensor, p: float, training: bool) -> bool:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    return not training or p == 0 or x.numel() == 0
