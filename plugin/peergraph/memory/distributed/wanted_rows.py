"""The rows of other machines that a batch needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from peergraph.memory.distributed.distributed_table import DistributedTable
from peergraph.memory.distributed.layout import Layout
from peergraph.memory.distributed.remote_rows import Location, RemoteRows
from peergraph.memory.distributed.routes import split_keys
from peergraph.memory.distributed.row_set import RowSet

Request = tuple[DistributedTable, Tensor]


@dataclass
class WantedRows:
    """The rows of one row set that a rank wants from other machines.

    Attributes:
        mask: the tables of the row set that it reads, as bits.
        rows: the distinct rows.
        by_fetcher: the keys of the rows that each rank of this machine fetches, on the host. The
            rows of the ranks follow each other in `rows`.
    """

    mask: int
    rows: RemoteRows
    by_fetcher: list[np.ndarray]


def wanted_rows(requests: Sequence[Request], layout: Layout) -> dict[RowSet, WantedRows]:
    """Returns the rows of other machines that a batch needs. Synchronises with a GPU.

    Raises IndexError for ids on the CPU that are out of range.
    """
    found = {}
    for rows in layout.sets:
        in_set = [(table, ids) for table, ids in requests if table.row_set is rows]
        if in_set:
            tables, ids = zip(*in_set, strict=True)
            found[rows] = _wanted_of_set(rows, layout.mask(tables, rows), tables[0], ids, layout)
    return found


def _wanted_of_set(
    rows: RowSet, mask: int, table: DistributedTable, ids: Sequence[Tensor], layout: Layout
) -> WantedRows:
    lists = list({id(i): i for i in ids}.values())
    located = [table.locate(i) for i in lists]
    positions = [torch.where(local == -1)[0] for local, _ in located]
    remote = [internal[p] for (_, internal), p in zip(located, positions, strict=True)]
    key_of = partial(layout.routes.keys, rows.split)
    keys = key_of(remote[0] if len(remote) == 1 else torch.cat(remote))
    distinct, slots = torch.unique(keys, return_inverse=True)
    locations = [
        Location(local, p, s)
        for (local, _), p, s in zip(
            located, positions, torch.split(slots, [len(p) for p in positions]), strict=True
        )
    ]
    by_fetcher = split_keys(distinct.cpu().numpy(), layout.routes.fetcher_bounds)
    return WantedRows(mask, RemoteRows(distinct, key_of, lists, locations), by_fetcher)
