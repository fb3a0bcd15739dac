"""Feature tables of the benchmarks, of float32 for users, in any storage."""

from __future__ import annotations

import torch
from harness.ranks import Session

from inputs.arrays import check_rows, feature_rows, fill_features
from peergraph.memory import NarrowTable, Table, Tiers
from peergraph.memory.table.row_codec import codec_of, storage_name
from peergraph.memory.table.row_encoder import RowEncoder

FULL = "float32"
TIERS = {
    "replicated": Tiers.all_replicated,
    "sharded": Tiers.all_sharded,
    "host": Tiers.all_host,
}
_FILL_BYTES = 256 << 20


def feature_table(
    session: Session,
    plan: str,
    rows: int,
    dim: int,
    storage: str = FULL,
    order: Table | None = None,
) -> Table:
    """A filled table; each rank makes the rows of its share. Collective.

    `order` gives the internal row of each id, as a store's tables have it.
    """
    codec = codec_of(storage_name(storage), torch.float32, (dim,))
    with session.stage(f"table of {rows} rows"):
        tiers, group = TIERS[plan](rows), session.group
        if codec is None:
            table = Table.create((rows, dim), torch.float32, tiers, group, order=order)
        else:
            table = NarrowTable.create_narrow(rows, codec, tiers, group, storage, order=order)
        _fill(session, table)
    return table


def _fill(session: Session, table: Table) -> None:
    rows, dim = table.shape
    begin, end = rows * session.rank // session.world, rows * (session.rank + 1) // session.world
    step = max(1, _FILL_BYTES // (4 * dim))
    chunk = torch.empty(min(step, end - begin), dim, device=session.device)
    for first in range(begin, end, step):
        part = chunk[: min(step, end - first)]
        table.load(fill_features(first, part), first)
    session.barrier()


def check_table(name: str, table: Table, ids: torch.Tensor) -> None:
    """Raises where some of the rows `ids` are not what the storage makes of the features."""
    ids = ids[:256]
    if not isinstance(table, NarrowTable):
        check_rows(name, table.gather(ids), ids)
        return
    expected = RowEncoder(table.codec, name).encode(feature_rows(ids, table.shape[1]), 0)
    if not torch.equal(table.gather(ids), table.codec.decode(expected)):
        raise AssertionError(f"{name}: gathered rows differ from the table's")
