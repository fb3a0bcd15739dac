"""The relations whose lists are in the order of their times, as long as no time is written."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from peergraph import _C
from peergraph.memory.device.launching import empty, launch_on
from peergraph.sampling.neighbor.options import NeighborOptions

if TYPE_CHECKING:
    from peergraph.memory import Table
    from peergraph.store import Store

# By table of times: structures, with the table's mark when their lists were read, and the result.
_results: weakref.WeakKeyDictionary[Table, list[tuple[weakref.ref[Any], int, bool]]] = (
    weakref.WeakKeyDictionary()
)


class TimeOrder:
    """A compiled sampler that bisects lists, and the times in whose order they must be.

    Args:
        native: the compiled sampler.
        tables: the tables of times, each with its mark when the lists were read.
    """

    def __init__(self, native: _C.KHopSampler, tables: Sequence[tuple[Table, int]]) -> None:
        self.native = native
        self._tables = tables

    def holds(self) -> bool:
        """Returns whether the times are those that were read."""
        return all(_mark(table) == value for table, value in self._tables)


def find_time_order(
    store: Store,
    options: NeighborOptions,
    native: _C.KHopSampler,
    compile_in_order: Callable[[list[int]], _C.KHopSampler],
) -> TimeOrder | None:
    """Reads the times of all lists, until one is out of order, once for each structure and table.

    Synchronises. Lists of relations that are sampled by weights, too, are read whole anyway.

    Args:
        native: the compiled sampler that reads whole lists.
        compile_in_order: compiles a sampler that bisects the lists of these relations.

    Returns:
        None: no relation has its lists in the order of their times.
    """
    relations, tables = [], []
    for relation, edge_type in enumerate(store.edge_types):
        table = options.times(store, edge_type)
        if table is None or options.labor or edge_type in options.weights:
            continue
        value = _mark(table)
        if value is None:
            continue
        structure = store.csc(edge_type)
        results = _results.setdefault(table, [])
        result = next((r for ref, v, r in results if ref() is structure and v == value), None)
        if result is None:
            device = torch.device(store.device)
            word = empty(1, torch.int64, device)
            result = native.lists_in_order(relation, word, launch_on(device))
            results[:] = [
                one for one in results if one[0]() is not None and one[0]() is not structure
            ]
            results.append((weakref.ref(structure), value, result))
        if result:
            relations.append(relation)
            tables.append((table, value))
    return TimeOrder(compile_in_order(relations), tables) if relations else None


def _mark(table: Table) -> int | None:
    return None if table.write_mark is None else table.write_mark.value
