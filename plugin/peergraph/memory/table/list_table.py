"""Tables with lists in their rows, and where the lists of some rows are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import Buffers, empty, is_cpu, launch_on
from peergraph.memory.table.table import Table


class ListTable(NamedTuple):
    """A table whose rows have lists, as many in each row."""

    bounds: Table
    """int64 ``[rows, columns + 1]``: where the lists of each row begin, and the last one ends."""
    elements: Table
    """The elements of the lists."""


class ListRows(NamedTuple):
    """The lists of some rows."""

    ends: Tensor
    """int64 ``[rows * columns + 1]``: 0, and where each list ends."""
    elements: Tensor
    """The elements of all lists, one list after the other."""


def list_places(lists: Sequence[tuple[Tensor, int]]) -> list[tuple[Tensor, Tensor]]:
    """Returns where the lists of several tables end, and where their elements are in the store.
    Waits for a GPU once.

    Args:
        lists: of each table, on one device: bounds of some rows, as those of :class:`ListTable`,
            and the number of elements in the store.

    Returns:
        Of each table, int64 ``[rows * columns + 1]`` from 0, and int64 ``[elements]``.

    Raises:
        RuntimeError: a list is no range of elements of the store.
    """
    if not lists:
        return []
    device = lists[0][0].device
    buffers, reads, ends = Buffers(device), [], []
    for bounds, count in lists:
        rows, width = bounds.shape
        ends.append(empty(rows * (width - 1) + 1, torch.int64, device))
        reads.append((bounds.contiguous(), ends[-1], count))
    sizes = list_sizes(len(lists), device)
    address, counts = _C.list_places(reads, sizes, launch_on(device), buffers)
    places = buffers.tensor(address, torch.int64, sum(counts))
    return list(zip(ends, torch.split_with_sizes(places, counts), strict=True))


def list_sizes(num_lists: int, device: torch.device) -> Tensor | None:
    """Returns memory to which a GPU writes the numbers of elements of as many tables; None where it
    is not needed.
    """
    if num_lists == 0 or is_cpu(device):
        return None
    return torch.empty(num_lists + 1, dtype=torch.int64, device="cpu", pin_memory=True)
