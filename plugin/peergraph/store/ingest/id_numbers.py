"""Numbers of nodes that have strings or sparse integers as ids, in a table of DuckDB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from peergraph.store.ingest.read.optional import require
from peergraph.store.ingest.workspace import Workspace, identifier, quoted

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Item = TypeVar("_Item")
_PURPOSE = "looking up string or sparse ids"


@dataclass(frozen=True)
class IdNumbers:
    """The numbers of the nodes of one type: a table ``(id, node)``.

    Args:
        workspace: the workspace with the database.
        table: the name of the table.
        as_text: whether ids are strings; otherwise they are int64.
        count: the number of nodes.
    """

    workspace: Workspace
    table: str
    as_text: bool
    count: int

    @classmethod
    def of_rows(
        cls, keys: Iterable[tuple[NDArray[np.int64], Any]], as_text: bool, workspace: Workspace
    ) -> tuple[IdNumbers, NDArray[np.int64], list[tuple[int, str]]]:
        """Numbers the ids in the order of the rows.

        Args:
            keys: the numbers of the rows, and their ids (Arrow arrays), batch by batch; null means
                that there is no id.
            as_text: whether ids are strings; otherwise they are int64.
            workspace: the workspace with the database.

        Returns:
            The numbers; the rows with an id that no earlier row has, ascending; and the other rows
            with their ids.
        """
        database = workspace.database
        given = workspace.unique_name("rows")
        _create(given, as_text, keys, workspace)
        table = workspace.unique_name("ids")
        database.execute(f"CREATE TABLE {table} AS SELECT id, min(node) AS node FROM {given} "
                         "WHERE id IS NOT NULL GROUP BY id")  # fmt: skip
        kept = np.sort(database.execute(f"SELECT node FROM {table}").fetchnumpy()["node"])
        again = database.execute(
            f"SELECT g.node, g.id FROM {given} g JOIN {table} t ON g.id = t.id "
            "WHERE g.node > t.node ORDER BY g.node"
        ).fetchall()
        database.execute(f"DROP TABLE {given}")
        if len(kept) and int(kept[-1]) >= len(kept):
            # Rows were left out: those after them move down.
            renumbered = workspace.unique_name("ids")
            database.execute(
                f"CREATE TABLE {renumbered} AS SELECT id, "
                f"row_number() OVER (ORDER BY node) - 1 AS node FROM {table}"
            )
            database.execute(f"DROP TABLE {table}")
            table = renumbered
        return cls(workspace, table, as_text, len(kept)), kept, again

    @classmethod
    def of_distinct(cls, keys: Iterable[Any], as_text: bool, workspace: Workspace) -> IdNumbers:
        """Numbers distinct ids in their own order (strings by their bytes).

        Args:
            keys: ids (Arrow arrays), batch by batch; null is no id.
        """
        given = workspace.unique_name("rows")
        rows = ((np.zeros(len(ids), np.int64), ids) for ids in keys)
        _create(given, as_text, rows, workspace)
        table = workspace.unique_name("ids")
        database = workspace.database
        database.execute(
            f"CREATE TABLE {table} AS SELECT id, row_number() OVER (ORDER BY id) - 1 AS node "
            f"FROM (SELECT DISTINCT id FROM {given} WHERE id IS NOT NULL)"
        )
        database.execute(f"DROP TABLE {given}")
        count = int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        return cls(workspace, table, as_text, count)

    def save(self, path: Path) -> None:
        """Writes the ids in the order of the nodes, as a Parquet file with the column ``id``."""
        self.workspace.database.execute(
            f"COPY (SELECT id FROM {self.table} ORDER BY node) TO {quoted(str(path))} "
            "(FORMAT parquet)"
        )


@dataclass(frozen=True)
class FoundEdges:
    """A batch of edges with looked-up ends, in any order.

    Args:
        rows: ``[n]`` numbers of the rows.
        source, destination: ``[n]`` int64; -1: no such node.
        source_id, destination_id: ``[n]`` Arrow arrays, the ids where there is no such node.
    """

    rows: NDArray[np.int64]
    source: NDArray[np.int64]
    destination: NDArray[np.int64]
    source_id: Any
    destination_id: Any


def look_up(
    edges: Iterable[tuple[NDArray[np.int64], Any, Any]],
    source: IdNumbers | None,
    destination: IdNumbers | None,
    workspace: Workspace,
    batch_rows: int,
) -> Iterator[FoundEdges]:
    """Looks up the ends of edges.

    Args:
        edges: numbers of rows, sources and destinations, batch by batch: Arrow arrays, or int64 of
            NumPy where the ends are node numbers.
        source, destination: the numbers to look up; None: the ends are node numbers.
    """
    arrow = require("pyarrow", _PURPOSE)
    kinds = [("row", arrow.int64())]
    for name, numbers in (("source", source), ("destination", destination)):
        is_text = numbers is not None and numbers.as_text
        kinds.append((name, arrow.string() if is_text else arrow.int64()))
    schema = arrow.schema(kinds)
    errors: list[Exception] = []
    batches = (
        arrow.record_batch([arrow.array(column) for column in edge], schema=schema)
        for edge in _noting(edges, errors)
    )
    cursor = workspace.database.cursor()
    name = workspace.unique_name("edges")
    cursor.register(name, arrow.RecordBatchReader.from_batches(schema, batches))
    # The rows carry their numbers: their order is not needed.
    cursor.execute("SET preserve_insertion_order = false")
    columns, joins = ["e.row AS row"], []
    for end, numbers in (("source", source), ("destination", destination)):
        if numbers is None:
            columns += [f"coalesce(e.{end}, -1) AS {end}", f"e.{end} AS {end}_id"]
            continue
        node = identifier(f"{end} ids")
        columns.append(f"coalesce({node}.node, -1) AS {end}")
        columns.append(f"CASE WHEN {node}.node IS NULL THEN e.{end} END AS {end}_id")
        joins.append(f"LEFT JOIN {numbers.table} AS {node} ON e.{end} = {node}.id")
    with _raising(errors):
        result = cursor.sql(f"SELECT {', '.join(columns)} FROM {name} e {' '.join(joins)}")
        # Versions before 1.5 have the other name.
        read = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
        for found in read(batch_rows):
            yield FoundEdges(
                found.column("row").to_numpy(),
                found.column("source").to_numpy(),
                found.column("destination").to_numpy(),
                found.column("source_id"),
                found.column("destination_id"),
            )


def _create(
    table: str,
    as_text: bool,
    keys: Iterable[tuple[NDArray[np.int64], Any]],
    workspace: Workspace,
) -> None:
    """Creates a table ``(node, id)`` of rows and ids."""
    arrow = require("pyarrow", _PURPOSE)
    kind = arrow.string() if as_text else arrow.int64()
    schema = arrow.schema([("node", arrow.int64()), ("id", kind)])
    errors: list[Exception] = []
    batches = (
        arrow.record_batch([arrow.array(rows), ids], schema=schema)
        for rows, ids in _noting(keys, errors)
    )
    cursor = workspace.database.cursor()
    cursor.register("given_rows", arrow.RecordBatchReader.from_batches(schema, batches))
    with _raising(errors):
        cursor.execute(f"CREATE TABLE {table} AS SELECT node, id FROM given_rows")


def _noting(items: Iterable[_Item], errors: list[Exception]) -> Iterator[_Item]:
    """Yields the items. Records an error of the iteration, because DuckDB changes its type."""
    try:
        yield from items
    except Exception as error:
        errors.append(error)
        raise


@contextmanager
def _raising(errors: list[Exception]) -> Iterator[None]:
    """Raises the first noted error in place of what comes of it."""
    try:
        yield
    except Exception:
        if errors:
            raise errors[0] from None
        raise
