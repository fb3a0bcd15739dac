"""What is known about the ids of a node type, and columns that have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from peergraph.store.ingest.graph_files import NodeFiles
from peergraph.store.ingest.id_numbers import IdNumbers, KeyTable
from peergraph.store.ingest.read.optional import require
from peergraph.store.ingest.read.row_source import Batch, RowSource
from peergraph.store.ingest.values.ids import (
    IdKind,
    MixedIds,
    kind_of_text,
    kind_of_types,
    to_keys,
    to_node_numbers,
)
from peergraph.store.ingest.values.numbers import Problems

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PLAUSIBLE_NODES = 1 << 20
_PLAUSIBLE_RATIO = 1000  # of nodes to ends of edges


@dataclass
class NodeIds:
    """The ids of one node type.

    Args:
        given: the files of the type.
        count: the number of nodes; None: the edges determine it.
        kind: whether ids are whole numbers or text; None: the first values of edges decide.
        numbers: the numbers of ids that are looked up.
    """

    given: NodeFiles
    count: int | None = None
    kind: IdKind | None = None
    numbers: IdNumbers | None = None
    # Of types that only edges name: the largest id and its place, ends, columns of keys.
    largest: int = -1
    largest_place: tuple[str, int] = ("", 0)
    num_ends: int = 0
    keys: list[tuple[KeyTable, str]] = field(default_factory=list)

    @property
    def is_named_by_edges(self) -> bool:
        """Whether edges determine the nodes."""
        return self.count is None and self.numbers is None

    @property
    def is_looked_up(self) -> bool:
        """Whether ids are looked up; otherwise they are the numbers of the nodes."""
        if self.numbers is not None:
            return True
        return self.count is None and (self.kind == "text" or self.given.numbering == "mapped")

    def add_numbers(self, ids: NDArray[Any], batch: Batch, source: RowSource) -> None:
        """Notes ids of a type that only edges name, which are the numbers of its nodes."""
        self.num_ends += len(ids)
        if len(ids) and int(ids.max()) > self.largest:
            at = int(ids.argmax())
            self.largest = int(ids[at])
            self.largest_place = source.place(int(batch.rows[at]))

    def count_nodes(self, node_type: str) -> int:
        """Returns the number of nodes that the largest id implies.

        Raises:
            ValueError: it is not plausible.
        """
        count = self.largest + 1
        if count > _PLAUSIBLE_NODES and count > _PLAUSIBLE_RATIO * self.num_ends:
            file, row = self.largest_place
            raise ValueError(
                f"nodes {node_type!r}: the id {self.largest} ({file}: row {row}) implies {count:,} "
                f"nodes, for {self.num_ends:,} ends of edges: give num_nodes if that is right, or "
                "numbering='mapped' if ids are not the numbers of the nodes"
            )
        return count


class IdColumn:
    """A column of ids of one node type.

    Args:
        source: the rows.
        column: the name of the column.
        what: names it in messages, such as ``"the source"``.
        types: users' names of types of Arrow by column.
        ids: the ids of the node type.

    Raises:
        ValueError: the column has a type that no id has, or of another kind than the nodes' ids.
    """

    def __init__(
        self, source: RowSource, column: str, what: str, types: Mapping[str, str], ids: NodeIds
    ) -> None:
        self._source, self.column, self._what, self._ids = source, column, what, ids
        self._where = f"{what} (column {column!r})"
        self._decides = False  # whether the values of a column of text tell the kind
        declared = list(source.types(column)) if column in source.names else []
        if column in types:
            arrow = require("pyarrow", "types of columns")
            try:
                declared = [arrow.type_for_alias(types[column])]
            except ValueError:
                raise ValueError(f"types: {types[column]!r} is no type of Arrow") from None
        kind = kind_of_types(declared, self._where)
        self._first: tuple[IdKind, int] | None = None
        if self._is_known:
            return
        if ids.given.numbering == "dense":
            ids.kind = "number"
        elif kind is not None:
            self._agree(kind, None)
        elif source.is_text:
            self._decides = True

    def read(self, batch: Batch, problems: Problems) -> Any:
        """Returns the ids of a batch: numbers of nodes ``[n]`` (int32 or int64 of NumPy), or keys
        (an array of Arrow). Rows without an id are added to the problems.

        Raises:
            ValueError: text of several kinds.
        """
        values, found = batch.columns[self.column], Problems()
        if self._decides:
            self._decide(values, batch)
        ids = self._ids
        try:
            if ids.is_looked_up:
                keys = to_keys(values, ids.kind or "number", found)
            else:
                keys = to_node_numbers(values, found)
        except ValueError as error:
            raise ValueError(f"{self._where}: {error}") from None
        problems.add_all(found, self._what)
        return keys

    @property
    def _is_known(self) -> bool:
        return self._ids.count is not None or self._ids.numbers is not None

    def _decide(self, values: Any, batch: Batch) -> None:
        try:
            kind, at = kind_of_text(values, self._where)
        except MixedIds as error:
            raise self._mixed(values, batch, error) from None
        if kind is None:
            return
        if self._first is None:
            self._first = kind, int(batch.rows[at])
        if self._first[0] != kind:
            file, row = self._source.place(self._first[1])
            here = self._place(values, batch, at)
            raise ValueError(
                f"{self._where}: {here} and row {row} of {file} are a number and text. "
                f"{self._advice()}"
            )
        self._agree(kind, self._place(values, batch, at))

    def _agree(self, kind: IdKind, place: str | None) -> None:
        known = self._ids.kind
        if known not in (None, kind):
            names = {"number": "whole numbers", "text": "text"}
            raise ValueError(
                f"{self._where}: ids are {names[kind]}{f' ({place})' if place else ''}, ids of the "
                f"same node type are {names[str(known)]} in another column. {self._advice()}"
            )
        self._ids.kind = kind

    def _mixed(self, values: Any, batch: Batch, error: MixedIds) -> ValueError:
        text = f"{self._where}: {self._place(values, batch, error.row)} is no whole number"
        if error.other >= 0:
            text += f", {self._place(values, batch, error.other)} is of another kind"
        return ValueError(f"{text}. {self._advice()}")

    def _place(self, values: Any, batch: Batch, at: int) -> str:
        file, row = self._source.place(int(batch.rows[at]))
        return f"{str(values[at])!r} ({file}: row {row})"

    def _advice(self) -> str:
        return (
            "Mend the files, or declare the column's type: csv=CsvFormat(types="
            f"{{{self.column!r}: 'string'}}) looks ids up as text, 'int64' makes other values bad "
            "rows"
        )


class IdRows:
    """The ids of the rows of a node type, which are kept until all are known.

    Args:
        ids: the ids of the node type.
        workspace: the workspace.
    """

    def __init__(self, ids: NodeIds, workspace: Any) -> None:
        self._ids, self._workspace = ids, workspace
        self._path = workspace.temporary / f"{workspace.unique_name('ids')}.rows"
        self._file = self._path.open("wb", buffering=0)
        self._text: KeyTable | None = None
        self.count = 0
        self._least, self._largest, self._num_ids = 0, -1, 0
        self._is_identity = True

    def append(self, keys: Any, rows: NDArray[np.int64], good: NDArray[np.bool_]) -> None:
        """Appends the ids of a batch.

        Args:
            keys: the ids; see :meth:`IdColumn.read`.
            rows: the numbers of the rows.
            good: a mask of the rows that have an id.
        """
        numbers = np.arange(self.count, self.count + len(rows))[good]
        self.count += len(rows)
        if self._ids.kind == "text":
            if self._text is None:
                self._text = self._table("text")
            arrow = require("pyarrow", "ids")
            self._text.append(numbers, rows[good], keys.filter(arrow.array(good)))
            return
        values = np.asarray(keys)[good]
        self._num_ids += len(values)
        self._is_identity &= bool(np.array_equal(values, numbers)) and bool(good.all())
        self._least = min(self._least, int(values.min(initial=0)))
        self._largest = max(self._largest, int(values.max(initial=-1)))
        written = np.stack([numbers, rows[good], values], axis=1).astype(np.int64)
        self._file.write(written.data)

    @property
    def is_identity(self) -> bool:
        """Whether each id is the number of its row."""
        return self._ids.kind != "text" and self._is_identity

    @property
    def is_dense(self) -> bool:
        """Whether the ids may be the numbers from 0 on, in some order."""
        in_range = self._least >= 0 and self._largest < self.count
        return self._ids.kind != "text" and in_range

    def parts(self) -> Any:
        """Yields the number of the node, the row and the id of whole numbers, ``[n, 3]``."""
        total = self._path.stat().st_size // 24
        if not total:
            return
        values = np.memmap(self._path, np.int64, "r", shape=(total, 3))
        for begin in range(0, total, 1 << 18):
            yield np.array(values[begin : begin + (1 << 18)])

    def key_table(self) -> KeyTable:
        """Returns a table with the columns ``node``, ``row`` and ``id``."""
        if self._text is None:
            self._text = self._table(self._ids.kind or "number")
            for part in self.parts():
                self._text.append(*part.T.copy())
        return self._text

    def close(self) -> None:
        """Removes the temporary file."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _table(self, kind: IdKind) -> KeyTable:
        return KeyTable({"node": "number", "row": "number", "id": kind}, self._workspace)
