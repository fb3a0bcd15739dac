"""All tables of one node type or edge type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from peergraph.store.disk.manifest import TableEntry
from peergraph.store.ingest.graph_files import Rows
from peergraph.store.ingest.read.open_rows import open_table
from peergraph.store.ingest.read.row_source import Batch, RowSource
from peergraph.store.ingest.tables.table_file import TableFile
from peergraph.store.ingest.tables.table_rows import TableRows, described
from peergraph.store.ingest.values.problems import Mask, Problems
from peergraph.store.ingest.workspace import Workspace
from peergraph.store.input.source import EdgeType, NodeType

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TableFiles:
    """The tables of one node or edge type: those of its files' columns, and those with files of
    their own.

    Args:
        kind: the node type or edge type.
        given: the tables by name, as users describe them.
        source: the rows of the type's files.
        workspace: the workspace; the files are written to its folder.
        stem: the stem of the file names: ``<stem>.table0.npy`` and so on.
        is_staged: whether rows may be put into another order or left out when all are known.
        repeat: the number of times that each row is written.
    """

    def __init__(
        self,
        kind: NodeType | EdgeType,
        given: Mapping[str, Any],
        source: RowSource | None,
        workspace: Workspace,
        stem: str,
        is_staged: bool,
        repeat: int = 1,
    ) -> None:
        self._kind, self._workspace = kind, workspace
        self._files: list[TableFile] = []
        self._own: dict[int, RowSource] = {}
        for number, (name, value) in enumerate(given.items()):
            table = described(value)
            rows = source
            if isinstance(table, Rows):
                try:
                    rows = self._own[number] = open_table(table.values, table.csv)
                except ValueError as error:
                    raise ValueError(f"table {name!r}: {error}") from None
            if rows is None:
                raise ValueError(f"table {name!r}: no column {value!r}: there are no files")
            path = workspace.folder / f"{stem}.table{number}.npy"
            read = TableRows(name, table, rows)
            self._files.append(TableFile(kind, read, path, workspace, is_staged, repeat))
        self._columns = [f for i, f in enumerate(self._files) if i not in self._own]

    @property
    def columns(self) -> list[str]:
        """Columns that a batch of the type's files must have."""
        names = [name for file in self._columns for name in file.table.columns]
        return list(dict.fromkeys(names))

    @property
    def has_own_files(self) -> bool:
        """Whether a table has a file of its own."""
        return bool(self._own)

    @property
    def own_rows(self) -> int | None:
        """The number of rows of a table in an array; None if there is none."""
        rows = [source.expected_rows for source in self._own.values() if not source.is_text]
        return rows[0] if rows else None

    def check_filter(self, where: str | None, what: str) -> None:
        """Raises NotImplementedError if a filter of rows meets a table with its own file."""
        if where is not None and self._own:
            raise NotImplementedError(
                f"{what}: where goes without tables that have a file of their own: write the rows "
                "that are left into a file"
            )

    def read(self, batch: Batch, problems: Problems) -> list[Tensor]:
        """Returns the rows of the tables of columns.

        Args:
            batch: a batch of the type's files.
            problems: gets the rows without a value.
        """
        return [file.table.read(batch.columns, problems) for file in self._columns]

    def write(self, rows: Sequence[Tensor], keep: Mask | None) -> None:
        """Appends rows of the tables of columns.

        Args:
            rows: the rows of each table.
            keep: a mask of the rows to write; None: all rows.
        """
        for file, values in zip(self._columns, rows, strict=True):
            file.write(values if keep is None else values[torch.from_numpy(keep)])

    def copy_own_files(self) -> NDArray[np.int64]:
        """Reads the tables with files of their own. Returns the numbers of the rows without a
        value, ascending, after they have been added to the bad rows.
        """
        bad = [np.empty(0, np.int64)]
        for number, source in self._own.items():
            file, work = self._files[number], self._workspace
            # Rows of arrays may be wide: they are read in pieces of bytes.
            batch_rows = source.batch_rows(source.names, work.memory)
            batches = source.batches(source.names, batch_rows)
            for batch in work.read(f"table {file.table.name}", source, batches):
                problems = batch.problems()
                file.write(file.table.read(batch.columns, problems))
                work.bad_rows.add_problems(source, batch, problems)
                bad.append(batch.rows[problems.bad])
            work.notes += source.notes
        return np.unique(np.concatenate(bad))

    def check_rows(self, num_rows: int, what: str) -> None:
        """Raises ValueError if a table with its own file has another number of rows."""
        for number, source in self._own.items():
            if source.total != num_rows:
                name = self._files[number].table.name
                raise ValueError(
                    f"table {name!r} of {what} has {source.total} rows, there are {num_rows}"
                )

    def finish(
        self,
        order: NDArray[np.int64] | None = None,
        left_out: NDArray[np.int64] | None = None,
        unused_rows: NDArray[np.int64] | None = None,
    ) -> tuple[TableEntry, ...]:
        """Completes all files; returns the entries of the manifest.

        Args:
            order, left_out: of the rows that were written, see :meth:`TableFile.finish`.
            unused_rows: the numbers of the rows that are left out of tables with files of their
                own, ascending; default: `left_out`.
        """
        own = left_out if unused_rows is None else unused_rows
        return tuple(
            file.finish(order, own if number in self._own else left_out)
            for number, file in enumerate(self._files)
        )

    def close(self) -> None:
        """Closes the files after an error."""
        for file in self._files:
            file.close()
