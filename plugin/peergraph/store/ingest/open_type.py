"""Opens the rows of one node type or edge type."""

from __future__ import annotations

from collections.abc import Sequence

from peergraph.store.ingest.conditions import Condition
from peergraph.store.ingest.graph_files import Columns, EdgeFiles, NodeFiles
from peergraph.store.ingest.query_rows import query_rows
from peergraph.store.ingest.read.open_rows import open_rows
from peergraph.store.ingest.read.row_source import RowSource
from peergraph.store.ingest.tables.columns import described
from peergraph.store.ingest.workspace import Workspace


def open_type(
    type_files: NodeFiles | EdgeFiles, named: Sequence[str | None], workspace: Workspace
) -> RowSource:
    """Returns the rows of a type that satisfy its condition.

    Args:
        type_files: the files.
        named: the columns that users name for ids.
        workspace: the workspace.
    """
    if type_files.query is not None:
        return query_rows(type_files.query, workspace)
    names = [name for name in named if name is not None]
    for table in map(described, type_files.tables.values()):
        if isinstance(table, Columns):
            names += [table.columns] if isinstance(table.columns, str) else [*table.columns]
    source = open_rows(type_files.files, type_files.csv, names, isinstance(type_files, EdgeFiles))
    workspace.notes += source.notes
    if type_files.where is not None and source.names:
        source.condition = Condition(type_files.where, source, workspace)
    return source
