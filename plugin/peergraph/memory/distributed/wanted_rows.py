"""The rows of other machines that batches need."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise

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

# The errors that wrong ids raise.
_REQUEST_ERRORS = (IndexError, TypeError, ValueError)


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


def wanted_rows_and_errors(
    batches: Sequence[Sequence[Request]], layout: Layout
) -> tuple[dict[RowSet, WantedRows], dict[int, Exception]]:
    """Finds the rows of other machines that batches need. Leaves out batches with wrong ids, and
    returns the error of each of them by the batch's position. Synchronises with a GPU.
    """
    with suppress(*_REQUEST_ERRORS):
        return wanted_rows([r for requests in batches for r in requests], layout), {}
    errors = _errors(batches, layout)
    valid = [r for i, requests in enumerate(batches) if i not in errors for r in requests]
    return wanted_rows(valid, layout), errors


def _errors(batches: Sequence[Sequence[Request]], layout: Layout) -> dict[int, Exception]:
    by_batch: dict[int, Exception] = {}
    for position, requests in enumerate(batches):
        try:
            wanted_rows(requests, layout)
        except _REQUEST_ERRORS as error:
            by_batch[position] = error
    return by_batch


def wanted_rows(requests: Sequence[Request], layout: Layout) -> dict[RowSet, WantedRows]:
    """Returns the rows of other machines that lists of ids need. Synchronises with a GPU.

    Raises IndexError for ids that are out of range.
    """
    by_set = {}
    for rows in layout.sets:
        in_set = [(table, ids) for table, ids in requests if table.row_set is rows]
        if in_set:
            tables, ids = zip(*in_set, strict=True)
            by_set[rows] = _wanted_of_set(rows, layout.mask(tables, rows), tables[0], ids, layout)
    return by_set


def _wanted_of_set(
    rows: RowSet, mask: int, table: DistributedTable, ids: Sequence[Tensor], layout: Layout
) -> WantedRows:
    routes = layout.routes
    lists = list({id(i): i for i in ids}.values())
    checked = [ids_on_device(i, rows.split.rows, table.device) for i in lists]
    if len(checked) == 1:
        located = find_rows(checked[0], rows, routes)
        locations, memory = [located.location], [located.memory]
    else:
        located = find_rows(_joined(checked, rows), rows, routes)
        location = _sorted_by_position(located.location)
        locations = _split(location, [i.numel() for i in checked])
        memory = [located.memory, *location]
    key_of = partial(routes.keys, rows.split)
    by_fetcher = split_keys(located.host_keys, routes.fetcher_bounds)
    return WantedRows(mask, RemoteRows(located.keys, key_of, lists, locations, memory), by_fetcher)


def _joined(lists: Sequence[Tensor], rows: RowSet) -> Tensor:
    """Joins lists of ids. Errors of ids name the position in the list."""
    for ids in lists:
        if ids.device.type == "cpu":
            _C.check_ids(id_list(ids), rows.split.rows, torch.get_num_threads())
    return torch.cat([ids.flatten() for ids in lists])


def _sorted_by_position(location: Location) -> Location:
    """Returns the same location with ascending positions. No id is padding."""
    # No sort of the positions: torch's kernels for it depend on the number of remote rows, so
    # `load_kernels` might not load them.
    slots = torch.empty_like(location.local)
    slots[location.positions] = location.slots
    (positions,) = torch.where(location.local == -1)
    return Location(location.local, positions, slots[positions])


def _split(location: Location, sizes: list[int]) -> list[Location]:
    """Splits the location of joined lists into one location for each list.

    Args:
        location: with ascending positions, whose memory is used again.
        sizes: the number of ids of each list.
    """
    begins = [0, *accumulate(sizes)]
    bounds = torch.tensor(begins, device=location.positions.device)
    ends = torch.searchsorted(location.positions, bounds).tolist()
    parts = []
    for local, begin, (first, end) in zip(
        torch.split(location.local, sizes), begins, pairwise(ends), strict=False
    ):
        positions = location.positions[first:end].sub_(begin)
        parts.append(Location(local, positions, location.slots[first:end]))
    return parts
