"""Whether the values of a column of text are numbers: all of them in all files, or none."""

from __future__ import annotations

from typing import Any

from peergraph.store.ingest.read.row_source import Batch, RowSource
from peergraph.store.ingest.values.ids import IdKind
from peergraph.store.ingest.values.problems import Mask
from peergraph.store.ingest.values.text import PLAIN_NUMBER, is_missing, matches


class TextKind:
    """What the values of a column of text without a declared type are.

    Args:
        source: the rows.
        what: names the column in messages.
    """

    def __init__(self, source: RowSource, what: str) -> None:
        self._source, self._what = source, what
        self._kind: IdKind | None = None
        self._first = ""

    def of(self, column: Any, batch: Batch) -> IdKind | None:
        """Returns whether the values are numbers or text, or None as long as all are missing.

        Args:
            column: the values of the batch, an array of strings of Arrow.

        Raises:
            ValueError: one value is a number, another is none.
        """
        is_number = matches(column, PLAIN_NUMBER)
        kinds: dict[IdKind, Mask] = {"number": is_number, "text": ~is_number & ~is_missing(column)}
        for kind, mask in kinds.items():
            if mask.any():
                row = int(mask.argmax())
                file, number = self._source.place(int(batch.rows[row]))
                place = f"{str(column[row])!r} ({file}: row {number})"
                if self._kind not in (None, kind):
                    raise ValueError(
                        f"{self._what} has numbers and text: {self._first} and {place}. Mend the "
                        "files, or declare the column's type by csv=CsvFormat(types=...): 'string' "
                        "takes all values as text, 'int64' as numbers"
                    )
                if self._kind is None:
                    self._kind, self._first = kind, place
        return self._kind
