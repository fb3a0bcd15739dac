"""The rows of one node type or edge type: those of its files that satisfy its condition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from peergraph.store.ingest.conditions import Condition
from peergraph.store.ingest.graph_files import Columns, EdgeFiles, NodeFiles
from peergraph.store.ingest.query_rows import query_rows
from peergraph.store.ingest.read.open_rows import open_rows
from peergraph.store.ingest.read.row_source import Batch, RowSource
from peergraph.store.ingest.tables.columns import described
from peergraph.store.ingest.workspace import Workspace


@dataclass(frozen=True)
class TypeRows:
    """The rows of a type.

    Args:
        source: all rows of the files.
        condition: the condition, if there is one.
    """

    source: RowSource
    condition: Condition | None

    def batches(
        self, columns: Sequence[str], memory: int, most_rows: int = 1 << 18
    ) -> Iterator[Batch]:
        """Yields the rows that satisfy the condition, once.

        Args:
            columns: the names of the columns to read.
            memory: the number of bytes to use.
            most_rows: the largest number of rows of a batch.
        """
        names = list(dict.fromkeys([*columns, *(self.condition.columns if self.condition else ())]))
        self.source.check_columns(names if self.source.names else [])
        batch_rows = self.source.batch_rows(names, memory, most_rows)
        for batch in self.source.batches(names, batch_rows):
            if self.condition is None or not len(batch):
                yield batch
                continue
            # Lines that cannot be read are reported whatever the condition is.
            chosen = self.condition.rows(batch) | batch.problems().bad
            yield batch if chosen.all() else batch.select(chosen)


def open_type(
    given: NodeFiles | EdgeFiles, named: Sequence[str], what: str, workspace: Workspace
) -> TypeRows:
    """Opens the files of a type.

    Args:
        given: the files.
        named: the columns that users name for ids.
        what: names the type in messages.
    """
    if given.query is not None:
        return TypeRows(query_rows(given.query, workspace), None)
    names = [*named]
    for table in map(described, given.tables.values()):
        if isinstance(table, Columns):
            names += [table.columns] if isinstance(table.columns, str) else [*table.columns]
    source = open_rows(given.files, given.csv, names, isinstance(given, EdgeFiles))
    workspace.notes += source.notes
    condition = None
    if given.where is not None and source.names:
        condition = Condition(given.where, source, workspace)
    return TypeRows(source, condition)
