"""Makes tables with narrow storage, and computes with plain torch what they return."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peergraph.memory import Group, NarrowTable, Tiers
from peergraph.memory.table.row_codec import STORED_DTYPES, codec_of
from peergraph.memory.table.rows_with_scales import RowsWithScales
from tests.memory.tables import TIER_KINDS
from tests.named_case import named_cases
from tests.pairwise import pairwise

STORAGES = [*STORED_DTYPES, "int8:4", "int8:32"]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def expected_rows(x: Tensor, storage: str) -> Tensor:
    """Computes with plain torch on the CPU what a table of this storage returns for `x`."""
    name, _, group = storage.partition(":")
    if name != "int8" or x.numel() == 0:
        return x.to(STORED_DTYPES[name]).to(x.dtype)
    flat = x.reshape(len(x), -1).float()
    size = int(group) if group else flat.shape[1]
    parts = []
    for values in flat.split(size, dim=1):
        scale = values.abs().amax(1, keepdim=True) / 127
        whole = torch.where(scale == 0, 0, (values / scale).round())
        parts.append(whole * scale)
    return torch.cat(parts, dim=1).to(x.dtype).reshape(x.shape)


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Draws values that all storages can hold: some large, some small, some zero."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator) * 10
    sizes = 10.0 ** torch.randint(-3, 1, shape, generator=generator)
    return (drawn * sizes * (torch.rand(shape, generator=generator) < 0.9)).to(dtype)


def narrow_table(
    x: Tensor,
    storage: str,
    tiers: Tiers,
    group: Group,
    *,
    apart: bool = False,
    order: Tensor | None = None,
) -> NarrowTable:
    """Makes a table that rank 0 fills with `x`. Collective.

    Args:
        storage: must not be the dtype of `x`.
        apart: whether the scales are apart also where this does not pay; no row may be on disk.
    """
    codec = codec_of(storage, x.dtype, tuple(x.shape[1:]))
    assert codec is not None
    if apart:
        stored = RowsWithScales.create(len(x), codec, tiers, group, order=order)
        table = NarrowTable(tuple(x.shape), codec, stored, "x")
    else:
        spill = tempfile.gettempdir() if tiers.disk else None
        table = NarrowTable.create_narrow(
            len(x), codec, tiers, group, "x", order=order, spill=spill
        )
    if group.rank == 0:
        table.load(x)
    group.barrier()
    return table


def can_be_apart(storage: str, kind: str, apart: bool) -> bool:
    """Returns whether rows on tiers of this kind (:func:`tests.memory.tables.split`) can be held
    with their scales apart, if `apart`.
    """
    return not apart or (storage.startswith("int8") and kind not in ("disk", "all"))


def is_narrow(storage: str, dtype: torch.dtype) -> bool:
    """Returns whether rows of this dtype are stored in another dtype."""
    return STORED_DTYPES[storage.partition(":")[0]] != dtype


def _is_possible(
    storage: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    kind: str,
    id_dtype: torch.dtype,
    apart: bool,
) -> bool:
    return is_narrow(storage, dtype) and can_be_apart(storage, kind, apart)


def each_narrow_table(shapes: list[tuple[int, ...]]) -> Callable[..., Any]:
    """Pairs of storages, dtypes, shapes of rows, tiers, dtypes of ids, and scales apart or not."""
    return named_cases(
        ("storage", "dtype", "shape", "kind", "id_dtype", "apart"),
        pairwise(
            STORAGES,
            FLOATS,
            shapes,
            TIER_KINDS,
            [torch.int32, torch.int64],
            [False, True],
            allowed=_is_possible,
        ),
    )
