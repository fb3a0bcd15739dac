"""Tables and their plain counterparts for tests."""

from __future__ import annotations

import tempfile

import torch

from peergraph.memory import Group, Table, Tiers

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


def random_rows(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random bytes as `dtype` (for bool, bytes of 0 and 1)."""
    generator = torch.Generator().manual_seed(seed)
    high = 2 if dtype == torch.bool else 256
    raw = (*shape, dtype.itemsize)
    data = torch.randint(high, raw, generator=generator, dtype=torch.uint8)
    return data.view(dtype).view(shape)


def random_ids(
    rows: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(rows, shape, generator=generator).to(dtype)


def table_of(rows: torch.Tensor, tiers: Tiers, group: Group, **order: torch.Tensor) -> Table:
    """A table filled by rank 0, seen by all ranks."""
    spill = tempfile.gettempdir() if tiers.disk else None
    table = Table.create(tuple(rows.shape), rows.dtype, tiers, group, **order, spill=spill)
    if group.rank == 0:
        table.load(rows)
    group.barrier()
    return table


def split(rows: int, kind: str) -> Tiers:
    """Named ways to spread `rows` rows."""
    third, quarter = rows // 3, rows // 4
    return {
        "replicated": Tiers.all_replicated(rows),
        "sharded": Tiers.all_sharded(rows),
        "on gpus": Tiers(third, rows - third),
        "host": Tiers.all_host(rows),
        "mixed": Tiers(third, third, rows - 2 * third),
        "disk": Tiers(disk=rows),
        "all": Tiers(quarter, quarter, quarter, rows - 3 * quarter),
    }[kind]


MEMORY_KINDS = ["replicated", "sharded", "host", "mixed"]
TIER_KINDS = [*MEMORY_KINDS, "disk", "all"]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equality of shape, dtype and bytes: NaN is NaN."""
    a, b = a.cpu().contiguous(), b.cpu().contiguous()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a.numel() == 0 or torch.equal(
        a.flatten().view(torch.uint8), b.flatten().view(torch.uint8)
    )


def plain_gather(rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Indexing on bytes, which torch does for every dtype."""
    raw = rows.unsqueeze(-1).view(torch.uint8)
    return raw[ids.long()].view(rows.dtype).squeeze(-1)
