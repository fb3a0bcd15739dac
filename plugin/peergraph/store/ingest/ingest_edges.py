"""Edges of one type: their CSC and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from peergraph.progress import progress_bar
from peergraph.store.disk.manifest import EdgeEntry
from peergraph.store.ingest.csc.edge_buckets import EdgeBuckets
from peergraph.store.ingest.csc.write_csc import write_csc
from peergraph.store.ingest.graph_files import EdgeFiles
from peergraph.store.ingest.id_numbers import KeyTable, ids_of_rows, look_up
from peergraph.store.ingest.node_ids import IdColumn, NodeIds
from peergraph.store.ingest.read.row_source import Batch, RowSource
from peergraph.store.ingest.staged_rows import StagedRows
from peergraph.store.ingest.tables.tables import Tables
from peergraph.store.ingest.values.ids import IdKind
from peergraph.store.ingest.values.problems import Problems
from peergraph.store.ingest.workspace import Workspace
from peergraph.store.input.source import EdgeType
from peergraph.store.placement.items import type_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WRITTEN_BYTES = 8  # of an edge, for the progress bar
_NAMED = 5
_ENDS = ("source", "destination")


class EdgeIngest:
    """Reads the files of one edge type, once, and sorts the edges.

    Args:
        edge_type: the edge type.
        number: the position of the edge type in the manifest.
        edge_files: the files.
        source: the rows of the files.
        ends: the names of the columns of sources and destinations.
        nodes: the ids of the source type and of the destination type.
        workspace: the state of the ingest, to which results are written.
    """

    def __init__(
        self,
        edge_type: EdgeType,
        number: int,
        edge_files: EdgeFiles,
        source: RowSource,
        ends: tuple[str, str],
        nodes: tuple[NodeIds, NodeIds],
        workspace: Workspace,
    ) -> None:
        self._stem, self._what = f"edge{number}", f"edges {type_name(edge_type)}"
        self._type, self._edge_files, self._source, self._ends = edge_type, edge_files, source, ends
        self._nodes, self._workspace = nodes, workspace
        self._repeat = 2 if edge_files.add_reverse else 1
        self._bad_before = workspace.bad_rows.total
        self._buckets: EdgeBuckets | None = None
        # Where they wait until the numbers of nodes are known: numbers of nodes, or keys.
        self._numbers: StagedRows | None = None
        self._keys: KeyTable | None = None
        self._left_out: list[NDArray[np.int64]] = []
        """The positions of rows that are left out, among all that satisfy the condition."""
        self._count = self._left = 0  # rows that have been read, and those that are left
        # Rows may still be left out when ids are looked up, or because of other files' values.
        self._files = Tables(
            edge_type,
            edge_files,
            source,
            workspace,
            self._stem,
            workspace.skips_bad_rows,
            self._repeat,
        )

    @property
    def waits(self) -> bool:
        """Whether other edges may have to be read before these can be sorted."""
        return any(nodes.is_named_by_edges for nodes in self._nodes)

    def read(self) -> None:
        """Reads all rows, and writes the tables."""
        work, files, source = self._workspace, self._files, self._source
        self._bad_before = work.bad_rows.total
        unusable = files.copy_own_files()
        columns = [
            IdColumn(source, name, f"the {end}", nodes)
            for name, end, nodes in zip(self._ends, _ENDS, self._nodes, strict=True)
        ]
        if not self.waits and not any(nodes.is_looked_up for nodes in self._nodes):
            self._buckets = self._new_buckets(self._repeat * source.expected_rows)
        names = [*self._ends, *files.columns]
        most_rows = EdgeBuckets.batch_edges(work.memory) // self._repeat
        batches = source.read(names, work.memory, most_rows)
        for batch in work.read(f"read {self._what}", batches, source.num_bytes):
            self._add_batch(batch, columns, unusable)
        files.check_rows(source.total, self._what)

    def run(self) -> EdgeEntry:
        """Sorts the edges that were read.

        Raises:
            BadRowsError: rows that cannot be used, unless the workspace skips them.
        """
        if self._buckets is None:
            self._buckets = self._new_buckets(self._repeat * self._left)
            if self._keys is not None:
                self._add_looked_up(self._keys)
            elif self._numbers is not None:
                for ends in self._numbers.pieces():
                    self._add(*ends.t().contiguous().numpy())
                self._numbers.remove()
        self._workspace.check_rows(self._bad_before, self._what)
        return self._write(self._buckets)

    def close(self) -> None:
        """Closes files after an error."""
        self._files.close()

    def _new_buckets(self, expected: int) -> EdgeBuckets:
        counts = [nodes.count or 0 for nodes in self._nodes]
        what = f"the files of {self._what}"
        self._workspace.check_space(8 * (counts[1] + 1) + 4 * expected, what)
        folder = self._workspace.temporary / self._stem
        folder.mkdir()
        return EdgeBuckets(folder, counts[0], counts[1], expected, self._workspace.memory)

    def _write(self, buckets: EdgeBuckets) -> EdgeEntry:
        num_edges, work = buckets.num_edges, self._workspace
        with progress_bar(f"sort {self._what}", num_edges * _WRITTEN_BYTES, work.progress) as moved:
            indptr, indices, edge_ids = write_csc(
                buckets,
                work.folder,
                self._stem,
                self._nodes[1].count or 0,
                self._edge_files.edge_ids,
                lambda edges: moved(edges * _WRITTEN_BYTES),
            )
        tables = self._files.finish(None, self._left_out)
        return EdgeEntry(self._type, num_edges, indptr, indices, edge_ids, tables)

    def _add_batch(
        self, batch: Batch, columns: list[IdColumn], unusable: NDArray[np.int64]
    ) -> None:
        problems, bad_rows = batch.problems(), self._workspace.bad_rows
        ends = [column.read(batch, problems) for column in columns]
        values = self._files.read(batch, problems)
        bad = problems.bad | (np.isin(batch.rows, unusable) if len(unusable) else False)
        # The buckets refuse batches with ids that are out of range.
        if self._buckets is None or bad.any() or not self._add(*ends):
            self._find_outside(batch, ends, bad, problems)
            bad |= problems.bad
            self._left_out.append(self._count + np.flatnonzero(bad))
            self._add_later(batch, ends, np.flatnonzero(~bad))
        self._count += len(batch)
        bad_rows.add_problems(self._source, batch, problems)
        self._files.write(values)

    def _find_outside(
        self, batch: Batch, ends: list[Any], bad: NDArray[np.bool_], problems: Problems
    ) -> None:
        """Finds ids that are out of range, in rows that are not bad."""
        for name, end, nodes in zip(_ENDS, ends, self._nodes, strict=True):
            if nodes.is_looked_up:
                continue
            outside, reason = end < 0, f"{name} id is negative"
            if nodes.count is not None:
                outside |= end >= nodes.count
                reason = f"{name} id out of range for {nodes.count} nodes"
            problems.add(reason, outside & ~bad, end)

    def _add_later(self, batch: Batch, ends: list[Any], at: NDArray[np.int64]) -> None:
        """Takes the rows of a batch that are left, sorted now or when all nodes are known."""
        if not len(at):
            return
        rows, left = batch.rows[at], [end.take(at) for end in ends]
        self._left += len(at)
        for end, nodes in zip(left, self._nodes, strict=True):
            if nodes.is_named_by_edges and not nodes.is_looked_up:
                nodes.add_numbers(end, rows, self._source)
        if self._buckets is not None:
            self._add(*left)
        elif not any(nodes.is_looked_up for nodes in self._nodes):
            if self._numbers is None:
                self._numbers = StagedRows(self._workspace.temporary / f"{self._stem}.ends")
            both = np.stack(left, axis=1).astype(np.int64, copy=False)
            self._numbers.append(torch.from_numpy(both))
        else:
            if self._keys is None:
                self._keys = self._new_keys()
            self._keys.append(self._count + at, rows, *left)

    def _new_keys(self) -> KeyTable:
        ends = list(zip(_ENDS, self._nodes, strict=True))
        kinds: dict[str, IdKind] = {
            name: (nodes.kind or "number") if nodes.is_looked_up else "number"
            for name, nodes in ends
        }
        keys = KeyTable({"place": "number", "row": "number", **kinds}, self._workspace)
        for name, nodes in ends:
            if nodes.is_named_by_edges and nodes.is_looked_up:
                nodes.keys.append((keys, name))
        return keys

    def _add(self, source: NDArray[Any], destination: NDArray[Any]) -> bool:
        assert self._buckets is not None
        if source.dtype != destination.dtype:
            source, destination = source.astype(np.int64), destination.astype(np.int64)
        if self._repeat == 2:
            both = np.stack([source, destination], axis=1)
            source, destination = both.reshape(-1), both[:, ::-1].reshape(-1)
        return self._buckets.add(np.ascontiguousarray(source), np.ascontiguousarray(destination))

    def _add_looked_up(self, keys: KeyTable) -> None:
        work = self._workspace
        most_rows = EdgeBuckets.batch_edges(work.memory) // self._repeat
        numbers = [nodes.numbers for nodes in self._nodes]
        for places, rows, *ends in look_up(keys, numbers, most_rows):
            wrong = np.zeros(len(rows), np.bool_)
            for name, end, nodes in zip(_ENDS, ends, self._nodes, strict=True):
                missing = (end < 0) | (end >= (nodes.count or 0))
                unknown = rows[missing & ~wrong].tolist()
                if unknown:
                    values = ids_of_rows(keys, name, unknown[:_NAMED])
                    reason = f"no node has the {name} id"
                    work.bad_rows.add(self._source, reason, unknown, values)
                wrong |= missing
            self._left_out.append(places[wrong])
            if not self._add(*(end[~wrong] for end in ends)):
                raise RuntimeError("a looked-up number is out of range")
        keys.drop()
