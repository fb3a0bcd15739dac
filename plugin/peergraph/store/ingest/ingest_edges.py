"""Edges of one type: their CSC and tables."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import torch

from peergraph.progress import progress_bar
from peergraph.store.csc.sort.edge_buckets import EdgeBuckets
from peergraph.store.disk.manifest import EdgeEntry
from peergraph.store.ingest.graph_files import EdgeFiles
from peergraph.store.ingest.node_ids import IdColumn, KeyTable, NodeIds
from peergraph.store.ingest.read.row_source import Batch, Problems, RowSource
from peergraph.store.ingest.staged_rows import StagedRows
from peergraph.store.ingest.type_ingest import TypeIngest
from peergraph.store.ingest.values.arrow_arrays import Array, Integers, Mask, take
from peergraph.store.ingest.values.numbers import ValueKind
from peergraph.store.ingest.workspace import Workspace
from peergraph.store.ingest.write_csc import write_csc
from peergraph.store.input.source import EdgeType
from peergraph.store.placement.items import type_name

_NAMED = 5
_ENDS = ("source", "destination")
_SOURCES = {f"{word}{end}" for word in ("src", "source", "from") for end in ("", "id", "_id")}
_DESTINATIONS = {
    f"{word}{end}" for word in ("dst", "destination", "target", "to") for end in ("", "id", "_id")
}


class EdgeIngest(TypeIngest):
    """Reads the files of one edge type, once, and sorts the edges. `nodes` are the ids of the
    source type and of the destination type.
    """

    def __init__(
        self,
        edge_type: EdgeType,
        stem: str,
        files: EdgeFiles,
        nodes: tuple[NodeIds, NodeIds],
        workspace: Workspace,
    ) -> None:
        self._files, self._nodes = files, nodes
        self._repeat = 2 if files.add_reverse else 1
        what, named = f"edges {type_name(edge_type)}", [files.source, files.destination]
        # Rows may still be left out when ids are looked up, or because of other files' values.
        is_staged = workspace.skips_bad_rows
        super().__init__(edge_type, what, stem, files, named, workspace, is_staged, self._repeat)
        assert self._source is not None
        self._rows: RowSource = self._source
        self._ends = self._names_of_ends(self._rows.names)
        self._buckets: EdgeBuckets | None = None
        # Where they wait until the numbers of nodes are known: numbers of nodes, or keys.
        self._numbers: StagedRows | None = None
        self._keys: KeyTable | None = None
        self._bad_before = 0
        self._left = 0  # rows that have been read and are not left out

    @property
    def waits(self) -> bool:
        """Whether other edges may have to be read before these can be sorted."""
        return any(nodes.count is None for nodes in self._nodes)

    def read(self) -> None:
        """Reads all rows, and writes the tables."""
        self._bad_before = self._workspace.bad_rows.total
        unusable = self._copy_own_files()
        columns = [
            IdColumn(self._rows, name, f"the {end}", nodes)
            for name, end, nodes in zip(self._ends, _ENDS, self._nodes, strict=True)
        ]
        if not self.waits and not any(nodes.is_looked_up for nodes in self._nodes):
            self._buckets = self._new_buckets(self._repeat * self._rows.expected_rows)
        for batch in self._batches(self._rows, self._ends, self._batch_rows()):
            ends = [column.read(batch) for column in columns]
            for table in self._of_columns:
                table.write(batch)
            bad = batch.problems.bad | (np.isin(batch.rows, unusable) if len(unusable) else False)
            # The buckets refuse batches with ids that are out of range.
            if self._buckets is None or bad.any() or not self._add(*ends):
                self._find_outside(ends, bad, batch.problems)
                bad |= batch.problems.bad
                self._left_out.append(self._count + np.flatnonzero(bad))
                self._add_later(batch, ends, np.flatnonzero(~bad))
        self._check_own_rows(self._rows.total)

    def sort(self) -> EdgeEntry:
        """Sorts the edges that were read, and writes them. Raises BadRowsError for rows that cannot
        be used, unless the workspace skips them.
        """
        if self._buckets is None:
            self._buckets = self._new_buckets(self._repeat * self._left)
            if self._keys is not None:
                self._add_looked_up(self._keys)
            elif self._numbers is not None:
                for ends in self._numbers.pieces():
                    self._add(*ends.t().contiguous().numpy())
                self._numbers.remove()
        self._check(self._bad_before, inf)
        work, num_edges = self._workspace, self._buckets.num_edges
        count = self._nodes[1].count or 0
        with progress_bar(f"sort {self._what}", num_edges, work.progress, " edges") as moved:
            arrays = write_csc(
                self._buckets, work.folder, self._stem, count, self._files.edge_ids, moved
            )
        assert isinstance(self._type, tuple)
        return EdgeEntry(self._type, num_edges, *arrays, self._finish_tables())

    def _names_of_ends(self, names: list[str]) -> tuple[str, str]:
        """Returns the columns of sources and destinations among those of the files."""
        source, destination = self._files.source, self._files.destination
        if source is not None and destination is not None:
            return source, destination
        if len(names) == 1:
            raise ValueError(f"{self._what} need two columns, there is {names[0]!r} only")
        if other := _end_elsewhere(names):
            raise ValueError(
                f"{self._what}: the ends are the first two columns ({names[0]!r}, {names[1]!r}) by "
                f"default, but there is {other!r}: name them by source= and destination="
            )
        # An empty CSV file has no columns.
        return (names[0], names[1]) if names else ("0", "1")

    def _batch_rows(self) -> int:
        return EdgeBuckets.batch_edges(self._workspace.memory) // self._repeat

    def _new_buckets(self, expected: int) -> EdgeBuckets:
        counts = [nodes.count or 0 for nodes in self._nodes]
        num_bytes = 8 * (counts[1] + 1) + 4 * expected
        self._workspace.check_space(num_bytes, f"the files of {self._what}")
        folder = self._workspace.temporary / self._stem
        folder.mkdir()
        return EdgeBuckets(folder, counts[0], counts[1], expected, self._workspace.memory)

    def _find_outside(self, ends: list[Any], bad: Mask, problems: Problems) -> None:
        """Finds ids that are out of range, in rows that are not bad."""
        for name, end, nodes in zip(_ENDS, ends, self._nodes, strict=True):
            if nodes.is_looked_up:
                continue
            outside, reason = end < 0, f"{name} id is negative"
            if nodes.count is not None:
                outside |= end >= nodes.count
                reason = f"{name} id out of range for {nodes.count} nodes"
            problems.add(reason, outside & ~bad, end)

    def _add_later(self, batch: Batch, ends: list[Any], at: Integers) -> None:
        """Takes the rows of a batch that are left, sorted now or when all nodes are known."""
        if not len(at):
            return
        rows, left = batch.rows[at], [take(end, at) for end in ends]
        self._left += len(at)
        for end, nodes in zip(left, self._nodes, strict=True):
            if nodes.count is None and not nodes.is_looked_up:
                nodes.add_numbers(end, rows, self._rows)
        if self._buckets is not None:
            self._add(*left)
        elif any(nodes.is_looked_up for nodes in self._nodes):
            self._keys = self._keys or self._new_keys()
            self._keys.append(self._count + at, rows, *left)
        else:
            if self._numbers is None:
                self._numbers = StagedRows(self._workspace.temporary / f"{self._stem}.ends")
            both = np.stack(left, axis=1).astype(np.int64, copy=False)
            self._numbers.append(torch.from_numpy(both))

    def _new_keys(self) -> KeyTable:
        source, destination = (nodes.kind or "number" for nodes in self._nodes)
        kinds: dict[str, ValueKind] = {"place": "number", "row": "number"}
        kinds |= {"source": source, "destination": destination}
        keys = KeyTable(kinds, self._workspace)
        for name, nodes in zip(_ENDS, self._nodes, strict=True):
            if nodes.count is None and nodes.is_looked_up:
                nodes.keys.append((keys, name))
        return keys

    def _add(self, source: Array, destination: Array) -> bool:
        assert self._buckets is not None
        if source.dtype != destination.dtype:
            source, destination = source.astype(np.int64), destination.astype(np.int64)
        if self._repeat == 2:
            both = np.stack([source, destination], axis=1)
            source, destination = both.reshape(-1), both[:, ::-1].reshape(-1)
        return self._buckets.add(np.ascontiguousarray(source), np.ascontiguousarray(destination))

    def _add_looked_up(self, keys: KeyTable) -> None:
        """Looks up the nodes of all edges, in the order of the rows; -1: there is none."""
        columns, joins = ["e.place", "e.row"], ""
        for name, nodes in zip(_ENDS, self._nodes, strict=True):
            columns.append(f"e.{name}" if nodes.table is None else f"coalesce({name}s.node, -1)")
            if nodes.table is not None:
                joins += f" LEFT JOIN {nodes.table} AS {name}s ON e.{name} = {name}s.id"
        query = f"SELECT {', '.join(columns)} FROM {keys.name} AS e{joins} ORDER BY e.place"
        for places, rows, *ends in keys.batches(query, self._batch_rows()):
            wrong = np.zeros(len(rows), np.bool_)
            for name, end in zip(_ENDS, ends, strict=True):
                if unknown := rows[(end < 0) & ~wrong].tolist():
                    first = ", ".join(map(str, unknown[:_NAMED]))
                    query = f"SELECT {name} FROM {keys.name} WHERE row IN ({first}) ORDER BY row"
                    values = [value for (value,) in keys.select(query)]
                    reason = f"no node has the {name} id"
                    self._workspace.bad_rows.add(self._rows, reason, unknown, values)
                wrong |= end < 0
            self._left_out.append(places[wrong])
            if not self._add(*(end[~wrong] for end in ends)):
                raise RuntimeError("a looked-up number is out of range")
        keys.drop()


def _end_elsewhere(names: Sequence[str]) -> str | None:
    """Returns a column that is an end by its name, but not the first (source) or second one."""
    ends = [(name.lower() in _SOURCES, name.lower() in _DESTINATIONS) for name in names]
    if not ends or (ends[0][0] and ends[1][1]):
        return None
    places = enumerate(zip(names, ends, strict=True))
    others = [name for i, (name, of) in places if (of[0] and i != 0) or (of[1] and i != 1)]
    return others[0] if others else None
