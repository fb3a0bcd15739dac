"""Edges of one type: their CSC and tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peergraph.progress import progress_bar
from peergraph.store.disk.manifest import EdgeEntry
from peergraph.store.disk.npy_writer import write_all
from peergraph.store.ingest.bad_rows import BadRowsError
from peergraph.store.ingest.csc.edge_buckets import EdgeBuckets
from peergraph.store.ingest.csc.write_csc import write_csc
from peergraph.store.ingest.graph_files import EdgeFiles
from peergraph.store.ingest.id_numbers import KeyTable, ids_of_rows, look_up
from peergraph.store.ingest.node_ids import IdColumn, NodeIds
from peergraph.store.ingest.read.row_source import Batch
from peergraph.store.ingest.tables.table_files import TableFiles
from peergraph.store.ingest.type_rows import TypeRows
from peergraph.store.ingest.values.numbers import Mask, Problems
from peergraph.store.ingest.workspace import Workspace
from peergraph.store.input.source import EdgeType
from peergraph.store.placement.items import type_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WRITTEN_BYTES = 8  # of an edge, for the progress bar
_STAGED_ROWS = 1 << 18
_NAMED = 5
_ENDS = ("source", "destination")


class EdgeIngest:
    """Reads the files of one edge type, once, and sorts the edges.

    Args:
        edge_type: the edge type.
        number: the position of the edge type in the manifest.
        given: the files.
        rows: the rows of the files.
        ends: the names of the columns of sources and destinations.
        nodes: the ids of the source type and of the destination type.
        workspace: the state of the ingest, to which results are written.
    """

    def __init__(
        self,
        edge_type: EdgeType,
        number: int,
        given: EdgeFiles,
        rows: TypeRows,
        ends: tuple[str, str],
        nodes: tuple[NodeIds, NodeIds],
        workspace: Workspace,
    ) -> None:
        self._type, self._stem = edge_type, f"edge{number}"
        self._given, self._rows, self._source = given, rows, rows.source
        self._ends, self._nodes, self._workspace = ends, nodes, workspace
        self._repeat = 2 if given.add_reverse else 1
        self._bad_before = workspace.bad_rows.total
        self._buckets: EdgeBuckets | None = None
        self._numbers: _StagedEnds | None = None
        self._keys: KeyTable | None = None
        self._left_out = [np.empty(0, np.int64)]
        """Positions of rows that look-ups left out, among those whose tables were written."""
        self._unused = [np.empty(0, np.int64)]
        """The numbers of all rows that are left out."""
        self._written = 0
        what = f"edges {type_name(edge_type)}"
        # Rows may still be left out when ids are looked up, or because of other files' values.
        self._files = TableFiles(
            edge_type,
            given.tables,
            rows.source,
            given.csv,
            workspace,
            self._stem,
            workspace.skips_bad_rows,
            self._repeat,
        )
        self._files.check_filter(given.where, what)

    @property
    def waits(self) -> bool:
        """Whether other edges may have to be read before these can be sorted."""
        return any(nodes.is_named_by_edges for nodes in self._nodes)

    def read(self) -> None:
        """Reads all rows, and writes the tables."""
        self._bad_before = self._workspace.bad_rows.total
        work, files = self._workspace, self._files
        unusable = files.copy_own_files()
        types = self._given.csv.types
        columns = [
            IdColumn(self._source, name, f"the {end}", types, nodes)
            for name, end, nodes in zip(self._ends, _ENDS, self._nodes, strict=True)
        ]
        if not self.waits and not any(nodes.is_looked_up for nodes in self._nodes):
            self._buckets = self._new_buckets(self._repeat * self._source.expected_rows)
        names = [*self._ends, *files.columns]
        memory = work.memory if self._keys is None else work.memory // 2
        most_rows = EdgeBuckets.batch_edges(memory) // self._repeat
        what = f"read {type_name(self._type)}"
        with progress_bar(what, self._source.num_bytes, work.progress) as moved:
            for batch in self._rows.batches(names, memory, most_rows):
                self._add_batch(batch, columns, unusable)
                work.bytes_read += batch.num_bytes
                moved(batch.num_bytes)
        if files.has_own_files:
            files.check_rows(self._source.total, f"edges {type_name(self._type)}")

    def run(self) -> EdgeEntry:
        """Sorts the edges that were read.

        Raises:
            BadRowsError: rows that cannot be used, unless the workspace skips them.
        """
        if self._buckets is None:
            self._buckets = self._new_buckets(self._repeat * self._written)
            if self._keys is not None:
                self._add_looked_up(self._keys)
            elif self._numbers is not None:
                for source, destination in self._numbers.parts():
                    self._add(source, destination)
                self._numbers.remove()
        if self._workspace.bad_rows.total > self._bad_before and not self._workspace.skips_bad_rows:
            raise BadRowsError(
                self._workspace.bad_rows,
                f"edges {type_name(self._type)} have rows that cannot be used:",
            )
        return self._write(self._buckets)

    def close(self) -> None:
        """Closes files after an error."""
        self._files.close()

    def _new_buckets(self, expected: int) -> EdgeBuckets:
        counts = [nodes.count or 0 for nodes in self._nodes]
        what = f"the files of edges {type_name(self._type)}"
        self._workspace.check_space(8 * (counts[1] + 1) + 4 * expected, what)
        folder = self._workspace.temporary / self._stem
        folder.mkdir()
        return EdgeBuckets(folder, counts[0], counts[1], expected, self._workspace.memory)

    def _write(self, buckets: EdgeBuckets) -> EdgeEntry:
        num_edges, work = buckets.num_edges, self._workspace
        what = f"sort {type_name(self._type)}"
        with progress_bar(what, num_edges * _WRITTEN_BYTES, work.progress) as moved:
            indptr, indices, edge_ids = write_csc(
                buckets,
                work.folder,
                self._stem,
                self._nodes[1].count or 0,
                self._given.edge_ids,
                lambda edges: moved(edges * _WRITTEN_BYTES),
            )
        tables = self._files.finish(
            left_out=np.unique(np.concatenate(self._left_out)),
            unused_rows=np.unique(np.concatenate(self._unused)),
        )
        return EdgeEntry(self._type, num_edges, indptr, indices, edge_ids, tables)

    def _add_batch(
        self, batch: Batch, columns: list[IdColumn], unusable: NDArray[np.int64]
    ) -> None:
        problems, bad_rows = Problems(), self._workspace.bad_rows
        ends = [column.read(batch, problems) for column in columns]
        values = self._files.read(batch, problems)
        bad = problems.any(len(batch))
        if len(unusable):
            bad |= np.isin(batch.rows, unusable)
        if self._buckets is not None and not bad.any() and self._add(*ends):
            keep = None
        else:
            for name, end, nodes in zip(_ENDS, ends, self._nodes, strict=True):
                if not isinstance(end, np.ndarray):
                    continue
                bad |= self._report_outside(batch, name, end, nodes, bad)
            keep = ~bad
            self._unused.append(batch.rows[bad])
        if problems.masks or batch.faults:
            bad_rows.add_batch(self._source, batch, problems)
            self._unused.append(np.array([row for row, _ in batch.faults], np.int64))
        self._files.write(values, keep)
        if keep is not None:
            self._add_later(batch, ends, keep)

    def _report_outside(
        self, batch: Batch, name: str, end: NDArray[Any], nodes: NodeIds, bad: Mask
    ) -> Mask:
        """Returns which ids are out of range, and reports those of rows that are not bad."""
        if nodes.is_looked_up:
            return np.zeros(len(batch), np.bool_)
        outside, reason = end < 0, f"{name} id is negative"
        if nodes.count is not None:
            outside |= end >= nodes.count
            reason = f"{name} id out of range for {nodes.count} nodes"
        new = outside & ~bad
        self._workspace.bad_rows.add_rows(self._source, reason, batch.rows[new], end[new])
        return outside

    def _add_later(self, batch: Batch, ends: list[Any], keep: Mask) -> None:
        """Takes the rows of a batch that are left, sorted now or when all nodes are known."""
        count = int(keep.sum())
        if not count:
            return
        arrow_mask = keep if keep.all() else np.flatnonzero(keep)
        kept = ends if keep.all() else [end.take(arrow_mask) for end in ends]
        rows = batch.rows[keep]
        self._written += count
        if self._buckets is not None:
            self._add(*kept)
            return
        for end, nodes in zip(kept, self._nodes, strict=True):
            if nodes.is_named_by_edges and not nodes.is_looked_up:
                nodes.add_numbers(end, Batch(rows, {}, 0), self._source)
        if not any(nodes.is_looked_up for nodes in self._nodes):
            if self._numbers is None:
                self._numbers = _StagedEnds(self._workspace.temporary / f"{self._stem}.ends")
            self._numbers.append(*kept)
            return
        if self._keys is None:
            kinds = {
                name: (nodes.kind or "number") if nodes.is_looked_up else "number"
                for name, nodes in zip(_ENDS, self._nodes, strict=True)
            }
            self._keys = KeyTable({"row": "number", **kinds}, self._workspace)
            for name, nodes in zip(_ENDS, self._nodes, strict=True):
                if nodes.is_named_by_edges and nodes.is_looked_up:
                    nodes.keys.append((self._keys, name))
        self._keys.append(rows, *kept)

    def _add(self, source: NDArray[Any], destination: NDArray[Any]) -> bool:
        assert self._buckets is not None
        if source.dtype != destination.dtype:
            source, destination = source.astype(np.int64), destination.astype(np.int64)
        if self._repeat == 2:
            both = np.stack([source, destination], axis=1)
            source, destination = both.reshape(-1), both[:, ::-1].reshape(-1)
        return self._buckets.add(np.ascontiguousarray(source), np.ascontiguousarray(destination))

    def _add_looked_up(self, keys: KeyTable) -> None:
        work, numbers = self._workspace, [nodes.numbers for nodes in self._nodes]
        assert self._buckets is not None
        first, most_rows = 0, EdgeBuckets.batch_edges(work.memory) // self._repeat
        for found in look_up(keys, numbers[0], numbers[1], work, most_rows):
            wrong = np.zeros(len(found.rows), np.bool_)
            for name, end, nodes in zip(
                _ENDS, (found.source, found.destination), self._nodes, strict=True
            ):
                missing = (end < 0) | (end >= (nodes.count or 0))
                rows = found.rows[missing].tolist()
                if rows:
                    values = ids_of_rows(keys, name, rows[:_NAMED], work)
                    reason = f"no node has the {name} id"
                    work.bad_rows.add_rows(self._source, reason, rows, values)
                wrong |= missing
            self._left_out.append(first + np.flatnonzero(wrong))
            self._unused.append(found.rows[wrong])
            first += len(wrong)
            if not self._add(found.source[~wrong], found.destination[~wrong]):
                raise RuntimeError("a looked-up number is out of range")
        keys.drop()


class _StagedEnds:
    """Sources and destinations in a temporary file, until the number of nodes is known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb", buffering=0)

    def append(self, source: NDArray[Any], destination: NDArray[Any]) -> None:
        """Appends edges."""
        ends = np.stack([source, destination], axis=1).astype(np.int64, copy=False)
        write_all(self._file.fileno(), ends.reshape(-1).view(np.uint8).data)

    def parts(self) -> Any:
        """Yields sources and destinations."""
        with self._path.open("rb", buffering=0) as file:
            while len(part := np.fromfile(file, np.int64, 2 * _STAGED_ROWS)):
                ends = part.reshape(-1, 2)
                yield np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1])

    def remove(self) -> None:
        """Removes the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)
