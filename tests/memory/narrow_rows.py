"""Makes tables with narrow storage, and computes with plain torch what they return."""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor

from peergraph.memory import Group, NarrowTable, Table, Tiers
from peergraph.memory.table.row_codec import STORED_DTYPES, codec_of

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
    x: Tensor, storage: str, tiers: Tiers, group: Group, **order: Tensor
) -> NarrowTable:
    """Makes a table that rank 0 fills with `x`. Collective.

    Args:
        storage: must not be the dtype of `x`.
    """
    codec = codec_of(storage, x.dtype, tuple(x.shape[1:]))
    assert codec is not None
    spill = tempfile.gettempdir() if tiers.disk else None
    shape = (len(x), codec.row_bytes)
    stored = Table.create(shape, torch.uint8, tiers, group, spill=spill, **order)
    table = NarrowTable(tuple(x.shape), codec, stored, "x")
    if group.rank == 0:
        table.load(x)
    group.barrier()
    return table


def is_narrow(storage: str, dtype: torch.dtype) -> bool:
    """Returns whether rows of this dtype are stored in another dtype."""
    return STORED_DTYPES[storage.partition(":")[0]] != dtype
