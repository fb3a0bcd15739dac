"""Records which passes over chunks a model takes, and which rows each pass writes and reads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from peergraph.fullgraph.offload.rows.row_store import RowStore
from peergraph.fullgraph.plan.schedule import (
    BEFORE,
    SEQUENTIAL,
    SOURCE,
    ChunkedPass,
    Schedule,
    StoredRows,
)
from peergraph.live_bytes import LiveBytes


@dataclass
class _Rows:
    """Rows of a store, by number of a pass; `last` is None as long as the store exists."""

    what: str
    role: str
    columns: int
    element_bytes: int
    count: int
    first: int
    last: int | None = None
    summed: tuple[int, ...] = ()
    read: tuple[int, ...] = ()


@dataclass
class _Step:
    """A pass over chunks."""

    phase: str
    rows: int
    all_rows: int
    edges: int
    numbers: list[list[int]]
    """Of the rows that are read, read by edges, written, and added to."""
    row_bytes: float = 0.0
    edge_bytes: float = 0.0
    fixed_bytes: int = 0


class PassTrace:
    """The passes of a graph, and the rows that they read and write, as they are made.

    Args:
        num_nodes: of all types.
        num_edges: of all relations.
    """

    def __init__(self, num_nodes: int, num_edges: int) -> None:
        self._num_nodes, self._num_edges = num_nodes, num_edges
        self.phase = "forward"
        """By which passes are called."""
        self.live: LiveBytes | None = None
        """Counts the memory of the work on chunks; None: it is not counted."""
        self.selected: set[int] = set()
        """Numbers of rows to which passes were restricted."""
        self._steps: list[_Step] = []
        self._rows: list[_Rows] = []
        self._open: dict[int, int] = {}
        self._in_pass = False
        self._epoch = 0
        self._chunk_sizes = 0, 0

    def start_epoch(self) -> None:
        """The passes from now on are those of an epoch like all others."""
        self._epoch = len(self._steps)

    def add_store(self, store: RowStore, role: str, what: str) -> None:
        """Notes that rows exist from now on, until the store is released.

        Args:
            store: of the rows.
            role: see :class:`RowAllocator`; "given" for the user's rows.
            what: the rows, as they are called.
        """
        first, key = len(self._steps) - self._in_pass, id(store)
        self._open[key] = len(self._rows)
        columns, element = math.prod(store.features), store.dtype.itemsize
        rows = _Rows(what, role, columns, element, store.row_layout.size, first)
        self._rows.append(rows)
        release = store._release

        def released() -> None:
            del self._open[key]
            rows.last = len(self._steps) - 1
            if release is not None:
                release()

        store._release = released

    def add_input(self, store: RowStore) -> None:
        """Notes that rows are the user's."""
        if id(store) not in self._open:
            self.add_store(store, "given", "features")
        rows = self._rows[self._open[id(store)]]
        rows.role, rows.what = "given", "features"

    def add_sum(
        self, store: RowStore, summed: Iterable[RowStore], read: Iterable[RowStore]
    ) -> None:
        """Notes that rows are sums that can be computed again.

        Args:
            store: of the sums.
            summed: stores of the rows that are summed.
            read: stores of the rows that are read in order for it.
        """
        rows = self._rows[self._open[id(store)]]
        rows.summed, rows.read = (tuple(self._open[id(s)] for s in part) for part in (summed, read))

    def begin(
        self,
        rows: int,
        all_rows: int,
        edges: int,
        reads: Sequence[RowStore],
        sources: Sequence[RowStore],
        writes: Sequence[RowStore],
        adds: Sequence[RowStore],
    ) -> None:
        """Notes a pass that begins.

        Args:
            rows: that it visits, of `all_rows` of this kind.
            edges: to these.
            reads, sources, writes, adds: see :class:`ChunkedPass`.
        """
        if rows < all_rows:
            self.selected.add(rows)
        numbers = [[self._open[id(s)] for s in stores] for stores in (reads, sources, writes, adds)]
        self._steps.append(_Step(self.phase, rows, all_rows, edges, numbers))
        self._in_pass = True

    def read(self, store: RowStore) -> None:
        """Notes that the pass reads rows of a store."""
        reads, number = self._steps[-1].numbers[0], self._open[id(store)]
        if number not in reads:
            reads.append(number)

    def visit(self, rows: int, edges: int) -> None:
        """Notes that the pass works on a chunk of some rows and edges from now on."""
        self._count_memory()
        self._chunk_sizes = rows, edges
        if self.live is not None:
            self.live.start_work(rows, edges)

    def end(self) -> None:
        """Notes that the pass has ended."""
        self._count_memory()
        self._in_pass, self._chunk_sizes = False, (0, 0)

    def _count_memory(self) -> None:
        step, (rows, edges) = self._steps[-1], self._chunk_sizes
        if self.live is not None and rows:
            work = self.live.most_of_work()
            step.row_bytes = max(step.row_bytes, work.rows / rows)
            step.edge_bytes = max(step.edge_bytes, work.edges / max(1, edges))
            step.fixed_bytes = max(step.fixed_bytes, work.fixed)

    def schedule(self) -> Schedule:
        """Returns the passes of the last epoch."""
        end, names = len(self._steps), self._names()
        rows = []
        for number, row in enumerate(self._rows):
            if number not in names:
                continue
            last = end - 1 if row.last is None else row.last
            rows.append(
                StoredRows(
                    names[number],
                    row.columns,
                    row.element_bytes,
                    SOURCE if row.role == "source" else SEQUENTIAL,
                    BEFORE if row.first < self._epoch else row.first - self._epoch,
                    last - self._epoch,
                    row.count / self._num_nodes,
                    row.role == "given",
                    *(tuple(names[other] for other in part) for part in (row.summed, row.read)),
                )
            )
        return Schedule(tuple(self._passes(names)), tuple(rows))

    def _passes(self, names: dict[int, str]) -> Iterable[ChunkedPass]:
        counts = Counter[str]()
        for step in self._steps[self._epoch :]:
            counts[step.phase] += 1
            reads, sources, writes, adds = (
                tuple(names[number] for number in dict.fromkeys(numbers))
                for numbers in step.numbers
            )
            yield ChunkedPass(
                f"{step.phase} {counts[step.phase]}",
                reads,
                sources,
                writes,
                adds,
                share=step.rows / max(1, step.all_rows),
                nodes=step.rows / self._num_nodes,
                working_bytes=step.row_bytes,
                fixed_bytes=step.fixed_bytes,
                edges=step.edges / max(1, self._num_edges),
                edge_bytes=step.edge_bytes,
            )

    def _names(self) -> dict[int, str]:
        """The name of each row set of the last epoch, with numbers where several have the same."""
        used = {
            number
            for step in self._steps[self._epoch :]
            for numbers in step.numbers
            for number in numbers
        }
        used |= {number for number, row in enumerate(self._rows) if row.role == "given"}
        total = Counter(self._rows[number].what for number in used)
        counts, names = Counter[str](), {}
        for number in sorted(used):
            what = self._rows[number].what
            counts[what] += 1
            names[number] = f"{what} {counts[what]}" if total[what] > 1 else what
        return names
