"""Rows that cannot be used: counts them by file and reason, and names the first ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, repeat

from peergraph.store.ingest.read.row_source import Batch, RowSource

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
        self,
        source: RowSource,
        reason: str,
        rows: Iterable[int],
        values: Iterable[object] = (),
    ) -> None:
        """Counts rows.

        Args:
            source: the source of the rows.
            reason: the reason why the rows cannot be used.
            rows: the numbers of the rows over all files of the source.
            values: the values of the first rows, if they tell more than the reason.
        """
        for row, value in zip(rows, chain(values, repeat("")), strict=False):
            file, number = source.place(int(row))
            key = file, reason
            self.counts[key] = self.counts.get(key, 0) + 1
            named = self.named.setdefault(key, [])
            if len(named) < _MOST_NAMED:
                named.append((number, _short(value)))

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


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
