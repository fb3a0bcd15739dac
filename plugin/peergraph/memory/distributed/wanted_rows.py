"""The rows of other machines that a batch needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.distributed.distributed_table import DistributedTable
from peergraph.memory.distributed.found_rows import find_rows
from peergraph.memory.distributed.layout import Layout
from peergraph.memory.distributed.remote_rows import Location, RemoteRows
from peergraph.memory.distributed.routes import split_keys
from peergraph.memory.distributed.row_set import RowSet
from peergraph.memory.table.id_list import id_list, ids_on_device

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

    Raises IndexError for ids that are out of range.
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
    routes = layout.routes
    lists = list({id(i): i for i in ids}.values())
    checked = [ids_on_device(i, rows.split.rows, table.device) for i in lists]
    if len(checked) == 1:
        found = find_rows(checked[0], rows, routes)
        locations, memory = [found.location], [found.memory]
    else:
        found = find_rows(_joined(checked, rows), rows, routes)
        locations = _split(found.location, [i.numel() for i in checked])
        memory = [found.memory, *(t for location in locations for t in location)]
    key_of = partial(routes.keys, rows.split)
    by_fetcher = split_keys(found.host_keys, routes.fetcher_bounds)
    return WantedRows(mask, RemoteRows(found.keys, key_of, lists, locations, memory), by_fetcher)


def _joined(lists: Sequence[Tensor], rows: RowSet) -> Tensor:
    """Joins lists of ids. Errors of ids name the position in the list."""
    for ids in lists:
        if ids.device.type == "cpu":
            _C.check_ids(id_list(ids), rows.split.rows, torch.get_num_threads())
    return torch.cat([ids.flatten() for ids in lists])


def _split(location: Location, sizes: list[int]) -> list[Location]:
    """Returns the location of each of some lists that follow each other."""
    parts = []
    begin = 0
    for local in torch.split(location.local, sizes):
        positions = location.positions - begin
        chosen = (positions >= 0) & (positions < len(local))
        parts.append(Location(local, positions[chosen], location.slots[chosen]))
        begin += len(local)
    return parts
