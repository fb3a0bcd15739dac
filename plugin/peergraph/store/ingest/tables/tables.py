"""All tables of one node type or edge type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from peergraph.store.disk.manifest import TableEntry
from peergraph.store.ingest.graph_files import EdgeFiles, NodeFiles, Rows
from peergraph.store.ingest.read.open_rows import open_table
from peergraph.store.ingest.read.row_source import Batch, RowSource
from peergraph.store.ingest.tables.columns import described
from peergraph.store.ingest.tables.table import Table
from peergraph.store.ingest.values.problems import Problems
from peergraph.store.ingest.workspace import Workspace
from peergraph.store.input.source import EdgeType, NodeType

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Tables:
    """The tables of one node or edge type: those of its files' columns, and those with files of
    their own.

    Args:
        kind: the node type or edge type.
        files: the files of the type.
        source: the rows of the type's files.
        workspace: the workspace; the files are written to its folder.
        stem: the stem of the file names: ``<stem>.table0.npy`` and so on.
        is_staged: whether rows may be put into another order or left out when all are known.
        repeat: the number of times that each row is written.

    Raises:
        NotImplementedError: a filter of rows meets a table with its own file.
    """

    def __init__(
        self,
        kind: NodeType | EdgeType,
        files: NodeFiles | EdgeFiles,
        source: RowSource | None,
        workspace: Workspace,
        stem: str,
        is_staged: bool,
        repeat: int = 1,
    ) -> None:
        self._kind, self._workspace = kind, workspace
        self._tables: list[Table] = []
        self._own: list[tuple[Table, RowSource]] = []
        self._of_columns: list[Table] = []
        for number, (name, value) in enumerate(files.tables.items()):
            path = workspace.folder / f"{stem}.table{number}.npy"
            table, rows = described(value), source
            try:
                if isinstance(table, Rows):
                    rows = open_table(table.values, table.csv)
                if rows is None:
                    raise ValueError(f"no column {value!r}: there are no files")
                made = Table(kind, name, table, rows, path, workspace, is_staged, repeat)
            except ValueError as error:
                raise ValueError(f"table {name!r}: {error}") from None
            self._tables.append(made)
            if isinstance(table, Rows):
                self._own.append((made, rows))
            else:
                self._of_columns.append(made)
        if files.where is not None and self._own:
            raise NotImplementedError(
                f"{kind!r}: where goes without tables that have a file of their own: write the "
                "rows that are left into a file"
            )

    @property
    def columns(self) -> list[str]:
        """Columns that a batch of the type's files must have."""
        return list(dict.fromkeys(name for table in self._of_columns for name in table.columns))

    @property
    def has_own_files(self) -> bool:
        """Whether a table has a file of its own."""
        return bool(self._own)

    @property
    def own_rows(self) -> int | None:
        """The number of rows of a table in an array; None if there is none."""
        return next((rows.expected_rows for _, rows in self._own if not rows.is_text), None)

    def read(self, batch: Batch, problems: Problems) -> list[Tensor]:
        """Returns the rows of the tables of columns.

        Args:
            batch: a batch of the type's files.
            problems: gets the rows without a value.
        """
        return [table.read(batch.columns, problems) for table in self._of_columns]

    def write(self, rows: Sequence[Tensor]) -> None:
        """Appends rows of the tables of columns, those of each table."""
        for table, values in zip(self._of_columns, rows, strict=True):
            table.write(values)

    def copy_own_files(self) -> NDArray[np.int64]:
        """Reads the tables with files of their own. Returns the numbers of the rows without a
        value, ascending, after they have been added to the bad rows.
        """
        bad, work = [np.empty(0, np.int64)], self._workspace
        for table, source in self._own:
            batches = source.read(source.names, work.memory)
            for batch in work.read(f"table {table.name}", batches, source.num_bytes):
                problems = batch.problems()
                table.write(table.read(batch.columns, problems))
                work.bad_rows.add_problems(source, batch, problems)
                bad.append(batch.rows[problems.bad])
            work.notes += source.notes
        return np.unique(np.concatenate(bad))

    def check_rows(self, num_rows: int, what: str) -> None:
        """Raises ValueError if a table with its own file has another number of rows."""
        for table, source in self._own:
            if source.total != num_rows:
                raise ValueError(
                    f"table {table.name!r} of {what} has {source.total} rows, there are {num_rows}"
                )

    def finish(
        self, order: NDArray[np.int64] | None, left_out: Sequence[NDArray[np.int64]]
    ) -> tuple[TableEntry, ...]:
        """Completes all files; returns the entries of the manifest.

        Args:
            order: see :meth:`Table.finish`.
            left_out: the positions of rows to leave out.
        """
        rows = np.unique(np.concatenate([np.empty(0, np.int64), *left_out]))
        return tuple(table.finish(order, rows) for table in self._tables)

    def close(self) -> None:
        """Closes the files after an error."""
        for table in self._tables:
            table.close()
