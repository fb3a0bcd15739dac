"""Nodes of one type: their numbers and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from peergraph.store.disk.manifest import TableEntry
from peergraph.store.ingest.graph_files import NodeFiles
from peergraph.store.ingest.id_numbers import IdNumbers, KeyTable
from peergraph.store.ingest.node_ids import IdColumn, NodeIds
from peergraph.store.ingest.open_type import open_type
from peergraph.store.ingest.read.row_source import Batch, RowSource
from peergraph.store.ingest.tables.tables import Tables
from peergraph.store.ingest.values.ids import IdKind
from peergraph.store.ingest.values.problems import Problems
from peergraph.store.ingest.workspace import Workspace
from peergraph.store.input.source import NodeType

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NodeIngest:
    """Reads the files of one node type, once.

    Args:
        node_type: the node type.
        number: the position of the node type in the manifest.
        node_files: the files.
        workspace: the state of the ingest, to which results are written.
    """

    def __init__(
        self, node_type: NodeType, number: int, node_files: NodeFiles, workspace: Workspace
    ) -> None:
        self._type, self._stem = node_type, f"node{number}"
        self._node_files, self._workspace = node_files, workspace
        self._what = f"nodes {node_type!r}"
        self._ids = NodeIds(node_files)
        self._keys: KeyTable | None = None
        self._count = self._without_id = 0  # rows that have been read, and those without an id
        self._bad_before = workspace.bad_rows.total
        self._left_out: list[NDArray[np.int64]] = []  # positions of rows

    def run(self) -> tuple[NodeIds, tuple[TableEntry, ...]]:
        """Numbers the nodes and writes their tables.

        Raises:
            BadRowsError: a row has no id, an id of an earlier row, or no value for a table. Missing
                and repeated ids are left out where the workspace skips bad rows.
        """
        node_files, work, source = self._node_files, self._workspace, None
        if node_files.files is not None or node_files.query is not None:
            source = open_type(node_files, [node_files.id], work)
        files = Tables(
            self._type,
            node_files,
            source,
            work,
            self._stem,
            is_staged=node_files.id is not None,
        )
        try:
            entries = self._without_rows(files) if source is None else self._read(source, files)
        except BaseException:
            files.close()
            raise
        return self._ids, entries

    def _without_rows(self, files: Tables) -> tuple[TableEntry, ...]:
        """Writes tables in separate files, if there are any."""
        count = self._node_files.num_nodes
        if files.has_own_files:
            count = files.own_rows if count is None else count
            if count is None:
                raise ValueError(f"{self._type!r}: tables in CSV files need num_nodes")
            self._copy_own_files(files, count)
        self._ids.count = count
        return files.finish(None, ())

    def _read(self, source: RowSource, files: Tables) -> tuple[TableEntry, ...]:
        node_files, work = self._node_files, self._workspace
        if node_files.id is None and node_files.numbering == "mapped":
            raise ValueError(f"{self._type!r}: numbering='mapped' needs the column `id`")
        column = IdColumn(source, node_files.id, "the id", self._ids) if node_files.id else None
        columns = [*files.columns, *([node_files.id] if node_files.id else [])] or source.names[:1]
        batches = source.read(columns, work.memory)
        for batch in work.read(self._what, batches, source.num_bytes):
            problems = batch.problems()
            if column is not None:
                self._add_ids(batch, column, problems)
            files.write(files.read(batch, problems))
            work.bad_rows.add_problems(source, batch, problems)
            self._count += len(batch)
        if work.bad_rows.total - self._bad_before > self._without_id:
            self._check(0)
        order = None if column is None else self._number(source)
        self._copy_own_files(files, source.total)
        entries = files.finish(order, self._left_out)
        count = self._count - sum(map(len, self._left_out))
        if node_files.num_nodes not in (None, count) and (entries or column is not None):
            raise ValueError(f"{self._type!r} has {count} rows, num_nodes={node_files.num_nodes}")
        self._ids.count = count if node_files.num_nodes is None else node_files.num_nodes
        return entries

    def _add_ids(self, batch: Batch, column: IdColumn, problems: Problems) -> None:
        """Keeps the ids of a batch."""
        unreadable = problems.bad.copy()
        keys = column.read(batch, problems)
        if self._keys is None and not problems.bad.all():
            kinds: dict[str, IdKind] = {"node": "number", "row": "number"}
            self._keys = KeyTable(kinds | {"id": self._ids.kind or "number"}, self._workspace)
        if self._keys is not None:
            good = np.flatnonzero(~problems.bad)
            self._keys.append(self._count + good, batch.rows[good], keys.take(good))
        missing = np.flatnonzero(problems.bad & ~unreadable)
        self._left_out.append(self._count + missing)
        self._without_id += len(missing)

    def _number(self, source: RowSource) -> NDArray[np.int64] | None:
        """Numbers the nodes. Returns the row of each node if rows are in another order."""
        ids, numbering, work = self._ids, self._node_files.numbering, self._workspace
        kind = ids.kind or "number"
        keys = self._keys or KeyTable({"node": "number", "row": "number", "id": kind}, work)
        in_range = is_identity = False
        if kind == "number":
            limits = f"coalesce(bool_and(id >= 0 AND id < {self._count}), true)"
            same = f"count(*) = {self._count} AND coalesce(bool_and(id = node), true)"
            ((in_range, is_identity),) = keys.select(f"SELECT {limits}, {same} FROM {keys.name}")
        if numbering == "dense" or (numbering == "auto" and in_range):
            ids.kind = "number"
            order = None if is_identity else self._order(keys, source)
            self._check(0)
            keys.drop()
            return order
        repeated = self._add_repeated(keys, source)
        self._left_out.append(repeated)
        self._check(self._without_id + len(repeated))
        ids.numbers = IdNumbers.of_rows(keys, work)
        keys.drop()
        ids.numbers.save(self._type, self._stem, kind)
        return None

    def _order(self, keys: KeyTable, source: RowSource) -> NDArray[np.int64]:
        """Returns the row ``[nodes]`` of each node, where ids are the numbers in some order."""
        bad_rows, count = self._workspace.bad_rows, self._count
        order = np.full(count, -1, np.int64)
        inside = f"id BETWEEN 0 AND {count - 1}"
        for nodes, numbers in keys.batches(f"SELECT node, id FROM {keys.name} WHERE {inside}"):
            order[numbers] = nodes
        if (order < 0).any():
            outside = keys.select(f"SELECT row, id FROM {keys.name} WHERE NOT ({inside})")
            for row, value in outside:
                bad_rows.add(source, f"id out of range for {count} nodes", [row], [value])
            self._add_repeated(keys, source)
        return order

    def _add_repeated(self, keys: KeyTable, source: RowSource) -> NDArray[np.int64]:
        """Reports the rows with the id of an earlier row; returns their positions."""
        positions, rows, values = np.array(keys.repeated(), object).reshape(-1, 3).T
        reason = "the id is that of an earlier row"
        self._workspace.bad_rows.add(source, reason, rows, values)
        return np.asarray(positions, np.int64)

    def _copy_own_files(self, files: Tables, num_rows: int) -> None:
        """Copies the tables with files of their own."""
        before = self._workspace.bad_rows.total
        files.copy_own_files()
        self._workspace.check_rows(before, self._what, 0)
        files.check_rows(num_rows, repr(self._type))

    def _check(self, may_skip: int) -> None:
        self._workspace.check_rows(self._bad_before, self._what, may_skip)
