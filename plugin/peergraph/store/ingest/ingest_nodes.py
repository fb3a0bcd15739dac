"""Nodes of one type: their numbers and tables."""

from __future__ import annotations

import numpy as np

from peergraph.store.disk.manifest import TableEntry
from peergraph.store.ingest.node_ids import IdColumn, KeyTable, NodeIds
from peergraph.store.ingest.read.row_source import RowSource
from peergraph.store.ingest.type_ingest import TypeIngest
from peergraph.store.ingest.values.arrow_arrays import Integers, take
from peergraph.store.ingest.workspace import Workspace


class NodeIngest(TypeIngest):
    """Reads the files of the node type that has some ids, once."""

    def __init__(self, ids: NodeIds, workspace: Workspace) -> None:
        files, what = ids.files, f"nodes {ids.node_type!r}"
        is_staged = files.id is not None
        super().__init__(ids.node_type, what, ids.stem, files, [files.id], workspace, is_staged)
        if files.id is None and files.numbering == "mapped" and self._source is not None:
            raise ValueError(f"{what}: numbering='mapped' needs the column `id`")
        self._ids = ids
        self._bad_before = workspace.bad_rows.total
        self._without_id = 0  # rows that have been read

    def read(self) -> tuple[TableEntry, ...]:
        """Numbers the nodes and writes their tables. Raises BadRowsError if a row has no id, an id
        of an earlier row, or no value for a table. Missing and repeated ids are left out where the
        workspace skips bad rows.
        """
        ids, count, order = self._ids, self._ids.files.num_nodes, None
        if self._source is not None:
            order = self._read_rows(self._source)
            num_rows = self._source.total
        else:
            rows = (own.expected_rows for _, own in self._own if not own.is_text)
            count = next(rows, None) if count is None else count
            if self._own and count is None:
                raise ValueError(f"{self._what}: tables in CSV files need num_nodes")
            num_rows = count or 0
        # The rows of tables with files of their own cannot be left out.
        before = self._workspace.bad_rows.total
        self._copy_own_files()
        self._check(before)
        self._check_own_rows(num_rows)
        entries = self._finish_tables(order)
        ids.count = count
        if self._source is not None:
            left = self._count - sum(map(len, self._left_out))
            if count not in (None, left) and (entries or ids.files.id is not None):
                raise ValueError(f"{self._what} have {left} rows, num_nodes={count}")
            ids.count = left if count is None else count
        return entries

    def _read_rows(self, source: RowSource) -> Integers | None:
        """Reads ids and tables. Returns the row of each node if rows are in another order."""
        name, keys = self._ids.files.id, None
        column = None if name is None else IdColumn(source, name, "the id", self._ids)
        for batch in self._batches(source, [] if name is None else [name]):
            if column is not None:
                unreadable = batch.problems.bad.copy()
                ids, bad = column.read(batch), batch.problems.bad
                good, missing = np.flatnonzero(~bad), np.flatnonzero(bad & ~unreadable)
                if len(good):  # of a kind that the values decide
                    keys = keys or self._new_keys()
                    keys.append(self._count + good, batch.rows[good], take(ids, good))
                self._left_out.append(self._count + missing)
                self._without_id += len(missing)
            for table in self._of_columns:
                table.write(batch)
        if self._workspace.bad_rows.total - self._bad_before > self._without_id:
            self._check(self._bad_before)
        return None if column is None else self._number(keys or self._new_keys(), source)

    def _new_keys(self) -> KeyTable:
        kind = self._ids.kind or "number"
        return KeyTable({"node": "number", "row": "number", "id": kind}, self._workspace)

    def _number(self, keys: KeyTable, source: RowSource) -> Integers | None:
        """Numbers the nodes. Returns the row of each node if rows are in another order."""
        ids, numbering = self._ids, self._ids.files.numbering
        in_range = is_identity = False
        if ids.kind != "text":
            limits = f"coalesce(bool_and(id >= 0 AND id < {self._count}), true)"
            same = f"count(*) = {self._count} AND coalesce(bool_and(id = node), true)"
            ((in_range, is_identity),) = keys.select(f"SELECT {limits}, {same} FROM {keys.name}")
        order = None
        if numbering == "dense" or (numbering == "auto" and in_range):
            ids.kind = "number"
            order = None if is_identity else self._order(keys, source)
            self._check(self._bad_before)
        else:
            repeated = self._add_repeated(keys, source)
            self._left_out.append(repeated)
            self._check(self._bad_before, self._without_id + len(repeated))
            first = f"SELECT id, min(node) AS place FROM {keys.name} GROUP BY id"
            ids.number(first, self._workspace)
        keys.drop()
        return order

    def _order(self, keys: KeyTable, source: RowSource) -> Integers:
        """Returns the row ``[nodes]`` of each node, where ids are the numbers in some order."""
        count = self._count
        order = np.full(count, -1, np.int64)
        inside = f"id BETWEEN 0 AND {count - 1}"
        for nodes, numbers in keys.batches(f"SELECT node, id FROM {keys.name} WHERE {inside}"):
            order[numbers] = nodes
        if (order < 0).any():
            outside = keys.select(f"SELECT row, id FROM {keys.name} WHERE NOT ({inside})")
            rows, values = zip(*outside, strict=True) if outside else ((), ())
            reason = f"id out of range for {count} nodes"
            self._workspace.bad_rows.add(source, reason, rows, values)
            self._add_repeated(keys, source)
        return order

    def _add_repeated(self, keys: KeyTable, source: RowSource) -> Integers:
        """Reports the rows with the id of an earlier row; returns their positions."""
        repeated = keys.select(
            f"SELECT node, row, r.id FROM {keys.name} r JOIN (SELECT id, min(node) AS first "
            f"FROM {keys.name} GROUP BY id HAVING count(*) > 1) f ON r.id = f.id "
            "WHERE node > first ORDER BY node"
        )
        positions, rows, values = zip(*repeated, strict=True) if repeated else ((), (), ())
        reason = "the id is that of an earlier row"
        self._workspace.bad_rows.add(source, reason, rows, values)
        return np.array(positions, np.int64)
