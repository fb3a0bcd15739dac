"""The files of one node type or edge type, and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from peergraph.store.disk.manifest import TableEntry
from peergraph.store.ingest.graph_files import Columns, EdgeFiles, NodeFiles
from peergraph.store.ingest.ingest_report import BadRowsError
from peergraph.store.ingest.read.open_rows import open_rows
from peergraph.store.ingest.read.row_source import Batch, RowSource, named_errors
from peergraph.store.ingest.sql import Condition, query_rows
from peergraph.store.ingest.table import Table, described
from peergraph.store.ingest.values.arrow_arrays import Integers
from peergraph.store.ingest.workspace import Workspace
from peergraph.store.input.source import EdgeType, NodeType

_MOST_ROWS = 1 << 30


class TypeIngest:
    """Reads the rows of one type, once, and writes its tables: those of columns of its files, and
    those with files of their own.

    Args:
        kind: the node type or edge type.
        what: names it in messages.
        stem: the stem of the names of its files, such as ``<stem>.table0.npy``.
        named: the columns that users name for ids.
        is_staged, repeat: see :class:`Table`.
    """

    def __init__(
        self,
        kind: NodeType | EdgeType,
        what: str,
        stem: str,
        files: NodeFiles | EdgeFiles,
        named: Sequence[str | None],
        workspace: Workspace,
        is_staged: bool,
        repeat: int = 1,
    ) -> None:
        self._type, self._what, self._stem, self._workspace = kind, what, stem, workspace
        tables = {name: described(table) for name, table in files.tables.items()}
        names = [name for name in named if name is not None]
        for table in tables.values():
            if isinstance(table, Columns):
                columns = table.columns
                names += [columns] if isinstance(columns, str) else columns
        with named_errors(what):
            self._source = _open(files, names, workspace)
        self._tables: list[Table] = []
        for number, (name, table) in enumerate(tables.items()):
            path = workspace.folder / f"{stem}.table{number}.npy"
            options = (self._source, path, workspace, is_staged, repeat)
            with named_errors(f"table {name!r}"):
                self._tables.append(Table(kind, name, table, *options))
        self._of_columns = [table for table in self._tables if table.own is None]
        self._own = [(table, table.own) for table in self._tables if table.own is not None]
        if files.where is not None and self._own:
            raise NotImplementedError(
                f"{kind!r}: where goes without tables that have a file of their own: write the "
                "rows that are left into a file"
            )
        self._count = 0
        """The number of rows that have been read and satisfy the condition."""
        self._left_out = [np.empty(0, np.int64)]
        """The positions of rows that are left out, among them."""

    def close(self) -> None:
        """Closes the files, also after an error."""
        for table in self._tables:
            table.close()

    def _batches(
        self, source: RowSource, ids: Sequence[str], most_rows: int = _MOST_ROWS
    ) -> Iterator[Batch]:
        """Yields the rows, with the columns of ids and of tables; reports the problems that they
        then have.
        """
        columns = [*ids, *(column for table in self._of_columns for column in table.columns)]
        batches = source.read(columns or source.names[:1], self._workspace.memory, most_rows)
        for batch in self._workspace.read(f"read {self._what}", source, batches):
            yield batch
            self._count += len(batch)

    def _copy_own_files(self) -> Integers:
        """Reads the tables with files of their own. Returns the numbers of the rows without a
        value, ascending, after they have been added to the bad rows.
        """
        bad, work = [np.empty(0, np.int64)], self._workspace
        for table, source in self._own:
            batches = source.read(source.names, work.memory)
            for batch in work.read(f"table {table.name}", source, batches):
                table.write(batch)
                bad.append(batch.rows[batch.problems.bad])
            work.notes += source.notes
        return np.unique(np.concatenate(bad))

    def _check_own_rows(self, num_rows: int) -> None:
        """Raises ValueError if a table with its own file has another number of rows."""
        for table, source in self._own:
            if source.total != num_rows:
                what = f"table {table.name!r} of {self._what}"
                raise ValueError(f"{what} has {source.total} rows, there are {num_rows}")

    def _finish_tables(self, order: Integers | None = None) -> tuple[TableEntry, ...]:
        """Completes all tables, see :meth:`Table.finish`; returns the entries of the manifest."""
        left_out = np.unique(np.concatenate(self._left_out))
        return tuple(table.finish(order, left_out) for table in self._tables)

    def _check(self, before: int, may_skip: float = 0) -> None:
        """Raises BadRowsError if there are more bad rows than `before`, and more than those that
        are left out if bad rows are skipped.
        """
        work = self._workspace
        if work.bad_rows.total - before > (may_skip if work.skips_bad_rows else 0):
            raise BadRowsError(work.bad_rows, f"{self._what} have rows that cannot be used:")


def _open(
    files: NodeFiles | EdgeFiles, named: Sequence[str], workspace: Workspace
) -> RowSource | None:
    """Returns the rows of a type that satisfy its condition; None: it has no files."""
    if files.query is not None:
        return query_rows(files.query, workspace)
    if files.files is None:
        return None
    arrays: Any = "edges" if isinstance(files, EdgeFiles) else None
    source = open_rows(files.files, files.csv, named, arrays)
    workspace.notes += source.notes
    if files.where is not None:
        source.condition = Condition(files.where, source, workspace)
    return source
