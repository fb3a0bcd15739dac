"""Rows that cannot be used: counts them by file and reason, and names the first ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

from peergraph.store.ingest.read.row_source import Batch, RowSource
from peergraph.store.ingest.values.numbers import Problems

_MOST_NAMED = 5


class BadRowsError(ValueError):
    """Files have rows that cannot be used.

    Args:
        bad_rows: all of them.
    """

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
        self, file: str, reason: str, rows: Sequence[int], values: Iterable[object] = ()
    ) -> None:
        """Counts rows of one batch.

        Args:
            file: the name of the file.
            reason: the reason why the rows cannot be used.
            rows: the numbers of the rows.
            values: the values of the first rows, if they tell more than the reason.
        """
        if len(rows) == 0:
            return
        key = file, reason
        self.counts[key] = self.counts.get(key, 0) + len(rows)
        named = self.named.setdefault(key, [])
        room = _MOST_NAMED - len(named)
        if room > 0:
            padded = chain(values, repeat(None))
            named += [(int(row), _short(next(padded))) for row in rows[:room]]

    def add_rows(
        self,
        source: RowSource,
        reason: str,
        rows: Iterable[int],
        values: Iterable[object] = (),
    ) -> None:
        """Counts rows of a source by their numbers over all files."""
        for row, value in zip(rows, chain(values, repeat(None)), strict=False):
            file, number = source.place(int(row))
            self.add(file, reason, [number], [] if value is None else [value])

    def add_problems(self, source: RowSource, batch: Batch, problems: Problems) -> int:
        """Counts the rows of a batch that have problems; returns their number."""
        before = self.total
        for reason, mask in problems.masks.items():
            self.add_rows(source, reason, batch.rows[mask].tolist())
        return self.total - before

    def add_batch(self, source: RowSource, batch: Batch, problems: Problems) -> None:
        """Counts the rows of a batch that have problems, and the lines that cannot be read."""
        self.add_problems(source, batch, problems)
        for row, reason in batch.faults:
            self.add_rows(source, reason, [row])

    @property
    def total(self) -> int:
        """The number of all rows; a row with two reasons counts twice."""
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


def _short(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
