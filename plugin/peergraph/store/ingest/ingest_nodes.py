"""Nodes of one type: their numbers and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from peergraph.progress import progress_bar
from peergraph.store.disk.manifest import NodeEntry, TableEntry
from peergraph.store.ingest.bad_rows import BadRowsError
from peergraph.store.ingest.graph_files import NodeFiles
from peergraph.store.ingest.id_numbers import IdNumbers
from peergraph.store.ingest.read.array_rows import ArrayColumn, ArrayRows
from peergraph.store.ingest.read.batch import RowReader, column_batches
from peergraph.store.ingest.read.open_rows import open_rows
from peergraph.store.ingest.read.prefetch import read_ahead
from peergraph.store.ingest.table_files import TableFiles
from peergraph.store.ingest.values.id_values import is_integer_column, to_dense_ids, to_keys
from peergraph.store.ingest.values.numbers import Problems
from peergraph.store.ingest.values.row_numbers import RowNumbers, RowPlaces, is_among
from peergraph.store.ingest.workspace import Workspace
from peergraph.store.input.source import NodeType

if TYPE_CHECKING:
    from numpy.typing import NDArray

REPEATED = "the id is that of an earlier row"
NOT_BELOW = "id out of range"


@dataclass(frozen=True)
class NumberedNodes:
    """The nodes of one type.

    Args:
        count: the number of nodes; None: the edges determine it.
        ids: the ids of the nodes if they are not the node numbers, else None.
        tables: the tables' entries of the manifest.
    """

    count: int | None
    ids: IdNumbers | None
    tables: tuple[TableEntry, ...]

    def entry(self, node_type: NodeType) -> NodeEntry:
        """Returns the entry of the manifest."""
        assert self.count is not None
        return NodeEntry(node_type, self.count, self.tables)


class NodeIngest:
    """Reads the files of one node type.

    Args:
        node_type: the node type.
        number: the position of the node type in the manifest.
        given: the files.
        workspace: the state of the ingest, to which results are written.
    """

    def __init__(
        self, node_type: NodeType, number: int, given: NodeFiles, workspace: Workspace
    ) -> None:
        self._type, self._stem = node_type, f"node{number}"
        self._given, self._workspace = given, workspace

    def run(self) -> NumberedNodes:
        """Numbers the nodes and writes their tables.

        Raises:
            BadRowsError: a row has no id, an id of an earlier row, or no value for a table. Missing
                and repeated ids are left out where the workspace skips bad rows.
        """
        given = self._given
        if given.files is None and given.query is None:
            return self._without_rows()
        reader = open_rows(given, self._workspace)
        ids, order, kept = self._numbered(reader)
        count, entries = self._write_tables(reader, order, kept)
        if given.num_nodes is not None:
            if given.num_nodes != count and (entries or ids is not None):
                raise ValueError(f"{self._type!r} has {count} rows, num_nodes={given.num_nodes}")
            count = given.num_nodes
        return NumberedNodes(count, ids, entries)

    def _without_rows(self) -> NumberedNodes:
        """Returns the nodes of a type whose tables are in separate files, or that has no tables."""
        files = self._table_files([], False, None)
        with files:
            count = self._given.num_nodes
            if files.has_arrays:
                count = files.array_rows if count is None else count
                if count is None:
                    raise ValueError(f"{self._type!r}: tables in CSV files need num_nodes")
                name = f"the arrays of {self._type!r}"
                row_bytes = files.array_bytes // max(1, count)
                rows = ArrayRows(name, {"": ArrayColumn(count, row_bytes, _no_values)})
                self._copy(rows, files, None)
        return NumberedNodes(count, None, files.entries())

    def _table_files(
        self, columns: Sequence[str], is_text: bool, order: NDArray[np.int64] | None
    ) -> TableFiles:
        work = self._workspace
        tables = self._given.tables
        return TableFiles(self._type, tables, columns, is_text, work, self._stem, order=order)

    def _write_tables(
        self,
        reader: RowReader,
        order: NDArray[np.int64] | None,
        kept: NDArray[np.int64] | None,
    ) -> tuple[int, tuple[TableEntry, ...]]:
        files = self._table_files(reader.column_names, reader.is_text, order)
        with files:
            files.check_filter(self._given.where, repr(self._type))
            if not files.columns and not files.has_arrays and reader.num_rows is not None:
                count = reader.num_rows
            else:
                count = self._copy(reader, files, kept)
        return len(kept) if kept is not None else count, files.entries()

    def _copy(self, reader: RowReader, files: TableFiles, kept: NDArray[np.int64] | None) -> int:
        """Reads all rows into tables; returns their number."""
        numbers, places = RowNumbers(), RowPlaces()
        bad_before = self._workspace.bad_rows.total
        columns = files.columns or reader.column_names[:1]
        work, name = self._workspace, f"nodes {self._type}"
        batch_rows = reader.batch_rows(columns, work.memory, files.array_row_bytes)
        with progress_bar(name, reader.num_bytes, work.progress) as moved:
            batches = reader.batches(columns, batch_rows)
            with read_ahead(batches) as ahead:
                for batch in ahead:
                    problems = Problems()
                    values = files.read(batch, numbers.of(batch), problems)
                    self._workspace.bad_rows.add_batch(batch, problems)
                    rows = places.of(batch)
                    keep = None if kept is None else is_among(rows, kept)
                    files.write(values, rows, keep)
                    self._workspace.bytes_read += batch.num_bytes
                    moved(batch.num_bytes)
        if self._workspace.bad_rows.total > bad_before:
            raise BadRowsError(self._workspace.bad_rows, f"nodes {self._type!r} cannot be read:")
        if files.has_arrays:
            files.check_rows(numbers.total, repr(self._type))
        return places.total

    def _numbered(
        self, reader: RowReader
    ) -> tuple[IdNumbers | None, NDArray[np.int64] | None, NDArray[np.int64] | None]:
        """Returns the numbers of ids, if they must be looked up; the node of each row, if rows are
        not in the order of the nodes; and the rows that are used, if not all are.
        """
        name = self._given.id
        if name is None:
            if self._given.numbering == "mapped":
                raise ValueError(f"{self._type!r}: numbering='mapped' needs the column `id`")
            return None, None, None
        found = self._examine(reader, name)
        if self._given.numbering == "mapped" or (
            self._given.numbering == "auto" and not found.is_dense
        ):
            return self._mapped(reader, name, not found.is_integer)
        if found.is_identity:
            return None, None, None
        return None, self._order(reader, name, found.num_rows), None

    def _examine(self, reader: RowReader, name: str) -> _IdFacts:
        facts = _IdFacts()
        with column_batches(reader, name, self._workspace.memory) as batches:
            for batch in batches:
                facts.add(batch.columns[name])
        return facts

    def _order(self, reader: RowReader, name: str, num_rows: int) -> NDArray[np.int64]:
        """Returns the ids ``[rows]``, which must be the numbers from 0 on in some order."""
        bad_rows, places = self._workspace.bad_rows, RowPlaces()
        bad_before = bad_rows.total
        order = np.zeros(num_rows, np.int64)
        seen = np.zeros(num_rows, np.bool_)
        with column_batches(reader, name, self._workspace.memory) as batches:
            for batch in batches:
                problems = Problems()
                ids, rows = to_dense_ids(batch.columns[name], problems), places.of(batch)
                bad_rows.add_batch(batch, problems)
                good = ~problems.any(len(ids))
                if good.all() and _is_new(ids, seen):
                    seen[ids], order[rows] = True, ids
                    continue
                for row, node, number in zip(batch.rows[good], ids[good], rows[good], strict=True):
                    if not 0 <= node < num_rows:
                        reason = f"{NOT_BELOW} for {num_rows} nodes"
                        bad_rows.add(batch.file, reason, [int(row)], [node])
                    elif seen[node]:
                        bad_rows.add(batch.file, REPEATED, [int(row)], [node])
                    else:
                        seen[node], order[number] = True, node
        if bad_rows.total > bad_before:
            raise BadRowsError(bad_rows, f"nodes {self._type!r} cannot be numbered by {name!r}:")
        return order

    def _mapped(
        self, reader: RowReader, name: str, as_text: bool
    ) -> tuple[IdNumbers, None, NDArray[np.int64] | None]:
        places, bad_before = RowPlaces(), self._workspace.bad_rows.total

        def keys() -> Iterator[tuple[NDArray[np.int64], Any]]:
            with column_batches(reader, name, self._workspace.memory) as batches:
                for batch in batches:
                    found, problems = Problems(), Problems()
                    rows, ids = places.of(batch), to_keys(batch.columns[name], as_text, found)
                    problems.add_all(found, "the id")
                    self._workspace.bad_rows.add_problems(batch, problems)
                    yield rows, ids

        ids, kept, repeated = IdNumbers.of_rows(keys(), as_text, self._workspace)
        for row, value in repeated:
            file, number = places.place(row)
            self._workspace.bad_rows.add(file, REPEATED, [number], [value])
        if self._workspace.bad_rows.total > bad_before and not self._workspace.skips_bad_rows:
            raise BadRowsError(self._workspace.bad_rows, f"nodes {self._type!r} have bad ids:")
        ids.save(self._workspace.folder / f"{self._stem}.ids.parquet")
        return ids, None, kept if len(kept) < places.total else None


class _IdFacts:
    """Facts about a column of ids, collected batch by batch."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.is_integer = True
        self.is_identity = True
        self._least, self._largest = 0, -1

    @property
    def is_dense(self) -> bool:
        """Whether the ids may be the numbers from 0 on, in some order."""
        return self.is_integer and self._least >= 0 and self._largest < self.num_rows

    def add(self, column: Any) -> None:
        """Adds a batch."""
        self.is_integer &= is_integer_column(column)
        if self.is_integer and len(column):
            problems = Problems()
            ids = to_dense_ids(column, problems)
            end = self.num_rows + len(ids)
            self.is_identity &= not problems.masks and bool(
                np.array_equal(ids, np.arange(self.num_rows, end))
            )
            self._least = min(self._least, int(ids.min()))
            self._largest = max(self._largest, int(ids.max()))
        self.is_identity &= self.is_integer
        self.num_rows += len(column)


def _is_new(ids: NDArray[Any], seen: NDArray[np.bool_]) -> bool:
    """Returns whether all ids are in range, new and different."""
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= len(seen)):
        return False
    return not seen[ids].any() and len(np.unique(ids)) == len(ids)


def _no_values(begin: int, end: int) -> NDArray[Any]:
    return np.empty((end - begin, 0))
