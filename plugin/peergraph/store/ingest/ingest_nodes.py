"""Nodes of one type: their numbers and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from peergraph.progress import progress_bar
from peergraph.store.disk.manifest import TableEntry
from peergraph.store.ingest.bad_rows import BadRowsError
from peergraph.store.ingest.graph_files import NodeFiles
from peergraph.store.ingest.id_numbers import IdNumbers
from peergraph.store.ingest.node_ids import IdColumn, IdRows, NodeIds
from peergraph.store.ingest.read.row_source import RowSource
from peergraph.store.ingest.tables.table_files import TableFiles
from peergraph.store.ingest.type_rows import TypeRows, open_type
from peergraph.store.ingest.values.numbers import Problems
from peergraph.store.ingest.workspace import Workspace
from peergraph.store.input.source import NodeType

if TYPE_CHECKING:
    from numpy.typing import NDArray

REPEATED = "the id is that of an earlier row"
NOT_BELOW = "id out of range"


class NodeIngest:
    """Reads the files of one node type, once.

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
        self._left_out = [np.empty(0, np.int64)]

    def run(self) -> tuple[NodeIds, tuple[TableEntry, ...]]:
        """Numbers the nodes and writes their tables.

        Raises:
            BadRowsError: a row has no id, an id of an earlier row, or no value for a table. Missing
                and repeated ids are left out where the workspace skips bad rows.
        """
        given = self._given
        ids = NodeIds(given)
        if given.files is None and given.query is None:
            return self._without_rows(ids)
        rows = open_type(given, [given.id] if given.id else [], repr(self._type), self._workspace)
        files = self._table_files(rows.source, given.id is not None)
        try:
            files.check_filter(given.where, repr(self._type))
            entries = self._read(rows, files, ids)
        except BaseException:
            files.close()
            raise
        return ids, entries

    def _without_rows(self, ids: NodeIds) -> tuple[NodeIds, tuple[TableEntry, ...]]:
        """Returns the nodes of a type whose tables are in separate files, or that has no tables."""
        files, bad_before = self._table_files(None, False), self._workspace.bad_rows.total
        try:
            ids.count = self._given.num_nodes
            if files.has_own_files:
                if ids.count is None:
                    ids.count = files.own_rows
                if ids.count is None:
                    raise ValueError(f"{self._type!r}: tables in CSV files need num_nodes")
                files.copy_own_files()
                self._check_bad_rows(bad_before)
                files.check_rows(ids.count, repr(self._type))
            return ids, files.finish()
        except BaseException:
            files.close()
            raise

    def _table_files(self, source: RowSource | None, is_staged: bool) -> TableFiles:
        work, given = self._workspace, self._given
        return TableFiles(self._type, given.tables, source, given.csv, work, self._stem, is_staged)

    def _read(self, rows: TypeRows, files: TableFiles, ids: NodeIds) -> tuple[TableEntry, ...]:
        given, work, bad_before = self._given, self._workspace, self._workspace.bad_rows.total
        column = id_rows = None
        if given.id is not None:
            column = IdColumn(rows.source, given.id, "the id", given.csv.types, ids)
            id_rows = IdRows(ids, work)
        elif given.numbering == "mapped":
            raise ValueError(f"{self._type!r}: numbering='mapped' needs the column `id`")
        columns = [*files.columns, *([given.id] if given.id else [])] or rows.source.names[:1]
        count = without_id = 0
        with progress_bar(f"nodes {self._type}", rows.source.num_bytes, work.progress) as moved:
            for batch in rows.batches(columns, work.memory):
                problems, id_problems = Problems(), Problems()
                values = files.read(batch, problems)
                if column is not None and id_rows is not None:
                    keys = column.read(batch, id_problems)
                    bad = id_problems.any(len(batch))
                    id_rows.append(keys, batch.rows, ~bad)
                    self._left_out.append(count + np.flatnonzero(bad))
                    without_id += work.bad_rows.add_problems(rows.source, batch, id_problems)
                work.bad_rows.add_batch(rows.source, batch, problems)
                files.write(values, None)
                count += len(batch)
                work.bytes_read += batch.num_bytes
                moved(batch.num_bytes)
        if work.bad_rows.total - bad_before > without_id:
            self._check_bad_rows(bad_before)
        order = None
        if id_rows is not None:
            order = self._number(ids, id_rows, rows.source, bad_before)
            id_rows.close()
        bad_before = work.bad_rows.total
        files.copy_own_files()
        self._check_bad_rows(bad_before)
        if files.has_own_files:
            files.check_rows(rows.source.total, repr(self._type))
        left_out = np.unique(np.concatenate(self._left_out))
        entries = files.finish(order, left_out)
        ids.count = self._count(count - len(left_out), entries, ids)
        return entries

    def _count(self, rows: int, entries: tuple[TableEntry, ...], ids: NodeIds) -> int:
        given = self._given.num_nodes
        if given is None:
            return rows
        if given != rows and (entries or self._given.id is not None):
            raise ValueError(f"{self._type!r} has {rows} rows, num_nodes={given}")
        return given

    def _number(
        self, ids: NodeIds, id_rows: IdRows, source: RowSource, bad_before: int
    ) -> NDArray[np.int64] | None:
        """Numbers the nodes. Returns the row of each node if rows are in another order."""
        work, numbering = self._workspace, self._given.numbering
        if numbering == "dense" or (numbering == "auto" and id_rows.is_dense):
            ids.kind = "number"
            self._check_bad_rows(bad_before)
            if id_rows.is_identity:
                return None
            return self._order(id_rows, source)
        kind = ids.kind or "number"
        ids.numbers, repeated = IdNumbers.of_rows(id_rows.key_table(), kind, work)
        nodes = np.array([node for node, _, _ in repeated], np.int64)
        self._left_out.append(nodes)
        work.bad_rows.add_rows(
            source, REPEATED, (row for _, row, _ in repeated), (value for _, _, value in repeated)
        )
        if not work.skips_bad_rows:
            self._check_bad_rows(bad_before)
        ids.numbers.save(work.folder / f"{self._stem}.ids.parquet")
        shown = "whole numbers" if kind == "number" else "text"
        work.notes.append(f"nodes {self._type}: ids are {shown}, in {self._stem}.ids.parquet")
        return None

    def _order(self, id_rows: IdRows, source: RowSource) -> NDArray[np.int64]:
        """Returns the row ``[nodes]`` of each node, where ids are the numbers in some order."""
        bad_rows, count = self._workspace.bad_rows, id_rows.count
        bad_before = bad_rows.total
        order = np.full(count, -1, np.int64)
        for part in id_rows.parts():
            numbers, rows, values = part.T
            outside = (values < 0) | (values >= count)
            bad_rows.add_rows(
                source, f"{NOT_BELOW} for {count} nodes", rows[outside], values[outside]
            )
            numbers, rows, values = numbers[~outside], rows[~outside], values[~outside]
            _, first = np.unique(values, return_index=True)
            again = np.ones(len(values), np.bool_)
            again[first] = False
            again |= order[values] >= 0
            bad_rows.add_rows(source, REPEATED, rows[again], values[again])
            order[values[~again]] = numbers[~again]
        self._check_bad_rows(bad_before)
        return order

    def _check_bad_rows(self, before: int) -> None:
        if self._workspace.bad_rows.total > before:
            raise BadRowsError(self._workspace.bad_rows, f"nodes {self._type!r} cannot be read:")
