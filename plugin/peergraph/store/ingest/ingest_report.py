"""The report of an ingest: what was made, and the rows that cannot be used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path

from peergraph.memory import StorageReport
from peergraph.printing import format_bytes
from peergraph.store.ingest.read.row_source import Batch, RowSource
from peergraph.store.input.source import EdgeType, NodeType

_MOST_NAMED = 5
_MOST_SHOWN = 60  # characters of a value


class BadRowsError(ValueError):
    """Files have rows that cannot be used: :attr:`bad_rows`."""

    def __init__(self, bad_rows: BadRows, what: str) -> None:
        super().__init__(f"{what}\n{bad_rows}")
        self.bad_rows = bad_rows


@dataclass
class BadRows:
    """Rows that were left out, or that make an ingest fail.

    Args:
        counts: rows by file and reason.
        named: the first rows of each, as ``(number of the row, its value)``. Rows are counted from
            0 on, headers not.
    """

    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    named: dict[tuple[str, str], list[tuple[int, str]]] = field(default_factory=dict)

    def add(
        self,
        source: RowSource,
        reason: str,
        rows: Iterable[int],
        values: Iterable[object] = (),
    ) -> None:
        """Counts rows, by their numbers over all files of the source. The values of the first rows
        are given if they tell more than the reason.
        """
        for row, value in zip(rows, chain(values, repeat("")), strict=False):
            file, number = source.place(int(row))
            key, text = (file, reason), str(value)
            self.counts[key] = self.counts.get(key, 0) + 1
            named = self.named.setdefault(key, [])
            if len(named) < _MOST_NAMED:
                shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
                named.append((number, shown))

    def add_problems(self, source: RowSource, batch: Batch) -> None:
        """Counts the rows of a batch that have problems."""
        for reason, mask in batch.problems.masks.items():
            values = batch.problems.values.get(reason)
            shown = () if values is None else values[mask]
            self.add(source, reason, batch.rows[mask].tolist(), shown)

    @property
    def total(self) -> int:
        """The number of all rows."""
        return sum(self.counts.values())

    def __str__(self) -> str:
        lines = []
        for (file, reason), count in self.counts.items():
            named = [
                f"row {row}" + (f" ({value})" if value else "")
                for row, value in self.named[file, reason]
            ]
            more = ", ..." if count > len(named) else ""
            rows = "1 row" if count == 1 else f"{count:,} rows"
            lines.append(f"{file}: {rows}: {reason}: {', '.join(named)}{more}")
        return "\n".join(lines)


@dataclass(frozen=True)
class IngestReport:
    """The result of :meth:`Store.ingest`; ``print`` shows it.

    Args:
        folder: the folder of the store.
        num_nodes, num_edges: the number of nodes or edges of each type.
        bad_rows: the rows that were left out.
        seconds: the duration of the ingest.
        bytes_read: the bytes read from the files; compressed files as they are.
        bytes_written: the bytes of the store's files.
        notes: the columns and dtypes of tables and ids, and files that were left out.
        storage_reports: for each table with narrow storage, by name: the changes of its values.
    """

    folder: Path
    num_nodes: dict[NodeType, int]
    num_edges: dict[EdgeType, int]
    bad_rows: BadRows
    seconds: float
    bytes_read: int
    bytes_written: int
    notes: tuple[str, ...] = ()
    storage_reports: dict[str, StorageReport] = field(default_factory=dict)

    def __str__(self) -> str:
        nodes, edges = sum(self.num_nodes.values()), sum(self.num_edges.values())
        read, written = format_bytes(self.bytes_read), format_bytes(self.bytes_written)
        lines = [
            f"{self.folder}: {nodes:,} nodes, {edges:,} edges in {self.seconds:.1f} s "
            f"({read} read, {written} written)"
        ]
        lines += self.notes
        if self.bad_rows.total:
            lines += [f"{self.bad_rows.total:,} bad rows were left out", str(self.bad_rows)]
        lines += [str(report) for report in self.storage_reports.values()]
        return "\n".join(lines)
