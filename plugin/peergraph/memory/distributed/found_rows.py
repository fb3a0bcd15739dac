"""Finds the rows of other machines that a list of ids needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import empty, launch_on
from peergraph.memory.distributed.remote_rows import Location
from peergraph.memory.distributed.routes import Routes
from peergraph.memory.distributed.row_set import RowSet
from peergraph.memory.table.id_list import id_list


class FoundRows(NamedTuple):
    """The rows of other machines that a list of ids needs.

    Attributes:
        location: the places of the rows of all ids; the positions are in the order of the keys.
        keys: int64 [k], the keys of the distinct rows, ascending, on the device of the tables.
        host_keys: the same, on the host.
        memory: the tensor that contains the location and the keys.
    """

    location: Location
    keys: Tensor
    host_keys: np.ndarray
    memory: Tensor


def find_rows(ids: Tensor, rows: RowSet, routes: Routes) -> FoundRows:
    """Finds the rows of other machines. Synchronises with a GPU.

    All of it is one call that does not hold the interpreter's lock. The training thread, which
    needs the lock, runs at the same time.

    Args:
        ids: int32 or int64, contiguous, on the device of the tables.
        rows: the row set of the ids.
        routes: the routes of the rows.

    Raises:
        IndexError: an id is out of range.
        ValueError: there are 2^32 ids or more, on a GPU.
    """
    count, device = ids.numel(), ids.device
    listed, split, launch = id_list(ids), rows.split.view, launch_on(device)
    host_keys = scratch = None
    if device.type == "cuda":
        num_bytes = _C.remote_rows_scratch(listed, split, routes.view, launch.device)
        scratch = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        host_keys = torch.empty(count, dtype=torch.int64, device="cpu")
    memory = empty((4, count), torch.int64, device)
    order = None if rows.order is None else rows.order.view
    num_remote, num_keys = _C.find_remote_rows(
        listed, order, split, routes.view, memory, launch, host_keys, scratch
    )
    local, positions, slots, keys = memory.unbind()
    keys = keys[:num_keys]
    return FoundRows(
        Location(local, positions[:num_remote], slots[:num_remote]),
        keys,
        (keys if host_keys is None else host_keys[:num_keys]).numpy(),
        memory,
    )
