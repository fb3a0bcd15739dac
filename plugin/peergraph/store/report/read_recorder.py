"""Counts the reads of a store while it is measured."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from peergraph.memory import Group, Table
from peergraph.memory.device.stopwatch import Stopwatch
from peergraph.memory.table.read_counter import ReadCounter
from peergraph.store.csc.tiered_csc import TieredCsc
from peergraph.store.input.source import EdgeType
from peergraph.store.placement.cost_model import SECTOR
from peergraph.store.placement.plan import Plan
from peergraph.store.placement.reads import BOUNDS
from peergraph.store.report.read_report import ItemReads, ReadReport


class ReadRecorder:
    """The counters of a store on one rank; created by :meth:`Store.measure`.

    ``print(measured)`` compares the reads so far with the plan's prediction.
    """

    def __init__(self, plan: Plan, rank: int, device: torch.device) -> None:
        self.sampling = Stopwatch(device)
        """Measures the seconds in samplers."""
        self._plan = plan
        self._rank = rank
        self._device = device
        self._tables: dict[tuple[str, str], tuple[Table, ReadCounter]] = {}
        self._lists: dict[EdgeType, tuple[str, ReadCounter]] = {}
        self._samples = 0
        self._walks = 0
        self._lock = threading.Lock()
        self._result: ReadReport | None = None

    def watch_table(self, kind: str, name: str, table: Table) -> None:
        """Starts counting the table's gathers."""
        self._tables[kind, name] = (table, table.count_reads())

    def watch_lists(self, edge_type: EdgeType, name: str, structure: TieredCsc) -> None:
        """Lets :meth:`add_lists` count the structure's reads."""
        order = None if structure.order is None else structure.order.as_tensor()
        counter = ReadCounter(
            structure.tiers, structure.partitions, self._rank, self._device, order
        )
        self._lists[edge_type] = (name, counter)

    def add_lists(self, edge_type: EdgeType, rows: Tensor, drawn: Tensor) -> None:
        """Adds reads of neighbour lists; nothing after the end, which a loader's thread may pass.

        Args:
            edge_type: the relation.
            rows: internal ids of the destinations, on the device.
            drawn: int64, the number of neighbours that were drawn for each destination.
        """
        watched = self._lists.get(edge_type)
        if watched is not None:
            watched[1].add(rows, drawn)

    def add_sample(self) -> None:
        """Counts a mini-batch."""
        with self._lock:
            self._samples += 1

    def add_walks(self) -> None:
        """Counts a call of a walker. It counts as a mini-batch if nothing else is sampled."""
        with self._lock:
            self._walks += 1

    def stop(self) -> None:
        """Ends counting; results stay available. Synchronises."""
        self._result = self.result()
        for table, _ in self._tables.values():
            table.counter = None
        self._tables.clear()
        self._lists.clear()

    def result(self) -> ReadReport:
        """Returns the reads of this rank so far. Synchronises."""
        if self._result is not None:
            return self._result
        items = []
        for name, counter in self._lists.values():
            lists, drawn = counter.totals()
            moved = [SECTOR * (BOUNDS * n + d) for n, d in zip(lists, drawn, strict=True)]
            items.append(ItemReads("structure", name, (tuple(lists),), (tuple(moved),), (0.0,)))
        in_sampling, gathers = self.sampling.seconds(), [0]
        for (kind, name), (table, counter) in self._tables.items():
            rows, _ = counter.totals()
            moved = [table.row_bytes * n for n in rows]
            seconds = counter.watch.seconds()
            if kind == "edge ids":
                in_sampling, seconds = in_sampling + seconds, 0.0
            else:
                gathers.append(counter.calls)
            items.append(ItemReads(kind, name, (tuple(rows),), (tuple(moved),), (seconds,)))
        return ReadReport(
            self._plan,
            (self._rank,),
            (self._samples or self._walks or max(gathers),),
            tuple(item for item in items if any(item.reads[0])),
            (in_sampling,),
        )

    def of_all_ranks(self, group: Group) -> ReadReport:
        """Returns the reads of all ranks so far. Collective; synchronises."""
        return self.result().of_all_ranks(group)

    def __str__(self) -> str:
        return str(self.result())
