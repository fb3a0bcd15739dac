"""Edges of one type: their CSC and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from peergraph.progress import progress_bar
from peergraph.store.disk.manifest import EdgeEntry
from peergraph.store.ingest.bad_rows import BadRowsError
from peergraph.store.ingest.csc.edge_buckets import EdgeBuckets
from peergraph.store.ingest.csc.write_csc import write_csc
from peergraph.store.ingest.graph_files import EdgeFiles
from peergraph.store.ingest.id_numbers import IdNumbers, look_up
from peergraph.store.ingest.ingest_nodes import NumberedNodes
from peergraph.store.ingest.read.batch import Batch, RowIndices, RowReader
from peergraph.store.ingest.read.prefetch import read_ahead
from peergraph.store.ingest.table_files import TableFiles
from peergraph.store.ingest.values.id_values import to_dense_ids, to_keys
from peergraph.store.ingest.values.numbers import Problems
from peergraph.store.ingest.values.row_numbers import RowNumbers, RowPlaces, is_among
from peergraph.store.ingest.workspace import Workspace
from peergraph.store.input.source import EdgeType
from peergraph.store.placement.items import type_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WRITTEN_BYTES = 8  # of an edge, for the progress bar
_END_BYTES = 18  # of an edge without tables: two int64, and Arrow's bits for missing values


class EdgeIngest:
    """Reads the files of one edge type.

    Args:
        edge_type: the edge type.
        number: the position of the edge type in the manifest.
        given: the files.
        reader: the reader of the files.
        ends: the names of the columns of sources and destinations.
        nodes: the nodes of the source type and of the destination type.
        workspace: the state of the ingest, to which results are written.
    """

    def __init__(
        self,
        edge_type: EdgeType,
        number: int,
        given: EdgeFiles,
        reader: RowReader,
        ends: tuple[str, str],
        nodes: tuple[NumberedNodes, NumberedNodes],
        workspace: Workspace,
    ) -> None:
        self._type, self._stem = edge_type, f"edge{number}"
        self._given, self._reader, self._ends = given, reader, ends
        self._ids: tuple[IdNumbers | None, IdNumbers | None] = (nodes[0].ids, nodes[1].ids)
        self._counts = (nodes[0].count or 0, nodes[1].count or 0)
        self._workspace, self._memory = workspace, workspace.memory
        self._repeat = 2 if given.add_reverse else 1

    def run(self) -> EdgeEntry:
        """Sorts the edges and writes the tables.

        Raises:
            BadRowsError: rows that cannot be used, unless the workspace skips them.
        """
        looked_up = self._ids != (None, None)
        expected = self._repeat * self._reader.expected_rows
        bad_before = self._workspace.bad_rows.total
        folder = self._workspace.temporary / self._stem
        folder.mkdir()
        # Look-ups take the other half.
        self._memory = self._workspace.memory // 2 if looked_up else self._workspace.memory
        buckets = EdgeBuckets(folder, *self._counts, expected, self._memory, looked_up)
        files = self._table_files()
        with files:
            files.check_filter(self._given.where, f"edges {type_name(self._type)}")
            if looked_up:
                missing = self._add_looked_up(buckets, files)
            else:
                self._add_in_order(buckets, files)
                missing = np.empty(0, np.int64)
        if self._workspace.bad_rows.total > bad_before and not self._workspace.skips_bad_rows:
            raise BadRowsError(
                self._workspace.bad_rows,
                f"edges {type_name(self._type)} have rows that cannot be used:",
            )
        return self._write(buckets, files, missing)

    def _write(
        self, buckets: EdgeBuckets, files: TableFiles, missing: NDArray[np.int64]
    ) -> EdgeEntry:
        num_edges = buckets.num_edges
        what = f"sort {type_name(self._type)}"
        with progress_bar(what, num_edges * _WRITTEN_BYTES, self._workspace.progress) as moved:
            indptr, indices, edge_ids = write_csc(
                buckets,
                self._workspace.folder,
                self._stem,
                self._counts[1],
                self._given.edge_ids,
                missing,
                lambda edges: moved(edges * _WRITTEN_BYTES),
            )
        return EdgeEntry(self._type, num_edges, indptr, indices, edge_ids, files.entries())

    def _table_files(self) -> TableFiles:
        return TableFiles(
            self._type,
            self._given.tables,
            self._reader.column_names,
            self._reader.is_text,
            self._workspace,
            self._stem,
            self._repeat,
        )

    def _batch_rows(self, columns: Sequence[str], other_bytes: int, most_edges: int) -> int:
        most_rows = most_edges // self._repeat
        most_bytes = most_rows * _END_BYTES
        return self._reader.batch_rows(columns, self._memory, other_bytes, most_rows, most_bytes)

    @contextmanager
    def _batches(
        self, columns: Sequence[str], other_bytes: int, most_edges: int, what: str
    ) -> Iterator[Iterator[Batch]]:
        """Reads batches ahead, with a progress bar.

        Args:
            columns: the names of the columns to read.
            other_bytes: as in :meth:`RowReader.batch_rows`.
            most_edges: the largest number of edges of a batch.
            what: what is done, for the progress bar.
        """
        work = self._workspace
        name = f"{what} {type_name(self._type)}"
        columns = list(dict.fromkeys(columns))
        batch_rows = self._batch_rows(columns, other_bytes, most_edges)
        batches = self._reader.batches(columns, batch_rows)
        with (
            progress_bar(name, self._reader.num_bytes, work.progress) as moved,
            read_ahead(batches) as ahead,
        ):

            def counted() -> Iterator[Batch]:
                for batch in ahead:
                    yield batch
                    work.bytes_read += batch.num_bytes
                    moved(batch.num_bytes)

            yield counted()

    # Ids that are node numbers: one pass, in the order of the rows.

    def _add_in_order(self, buckets: EdgeBuckets, files: TableFiles) -> None:
        numbers = RowNumbers()
        columns = [*self._ends, *files.columns]
        array_bytes, most = files.array_row_bytes, buckets.batch_edges
        with self._batches(columns, array_bytes, most, "read") as batches:
            for batch in batches:
                self._add_batch(batch, numbers.of(batch), buckets, files)
        if files.has_arrays:
            files.check_rows(numbers.total, f"edges {type_name(self._type)}")

    def _add_batch(
        self, batch: Batch, rows: RowIndices, buckets: EdgeBuckets, files: TableFiles
    ) -> None:
        problems = Problems()
        source, destination = self._dense_ends(batch, problems)
        values = files.read(batch, rows, problems)
        keep = None
        if problems.masks or batch.skipped or not self._add(buckets, source, destination):
            ends = source, destination
            in_range = [(e >= 0) & (e < n) for e, n in zip(ends, self._counts, strict=True)]
            without_id = problems.any(len(batch))
            for name, end, fits, count in zip(
                ("source", "destination"), ends, in_range, self._counts, strict=True
            ):
                bad = ~fits & ~without_id
                rows_of = list(batch.rows[bad])
                reason = f"{name} id out of range for {count} nodes"
                self._workspace.bad_rows.add(batch.file, reason, rows_of, end[bad])
            self._workspace.bad_rows.add_batch(batch, problems)
            keep = in_range[0] & in_range[1] & ~without_id
            self._add(buckets, source[keep], destination[keep])
        files.write(values, rows, keep)

    def _dense_ends(self, batch: Batch, problems: Problems) -> tuple[NDArray[Any], NDArray[Any]]:
        ends = []
        for name, what in zip(self._ends, ("source", "destination"), strict=True):
            found = Problems()
            ends.append(to_dense_ids(batch.columns[name], found))
            problems.add_all(found, f"the {what}")
        if ends[0].dtype != ends[1].dtype:
            ends = [end.astype(np.int64) for end in ends]
        return ends[0], ends[1]

    def _add(self, buckets: EdgeBuckets, source: NDArray[Any], destination: NDArray[Any]) -> bool:
        if self._repeat == 2:
            source, destination = _both_directions(source, destination)
        return buckets.add(source, destination)

    # Ids that are looked up: the ends are found in any order, and tables are read in a separate
    # pass.

    def _add_looked_up(self, buckets: EdgeBuckets, files: TableFiles) -> NDArray[np.int64]:
        """Returns the numbers of the rows that were left out, ascending."""
        places = RowPlaces()
        bad = [self._rows_without_values(buckets, files)]
        unusable = bad[0]
        edges = look_up(
            self._keys(places, buckets.batch_edges, bad),
            *self._ids,
            self._workspace,
            self._batch_rows(self._ends, 0, buckets.batch_edges),
        )
        for found in edges:
            wrong = np.zeros(len(found.rows), np.bool_)
            for end, ids, count, name in (
                (found.source, found.source_id, self._counts[0], "source"),
                (found.destination, found.destination_id, self._counts[1], "destination"),
            ):
                missing = (end < 0) | (end >= count)
                self._report_unknown(places, found.rows[missing], ids, missing, name)
                wrong |= missing
            bad.append(found.rows[wrong])
            use = ~wrong & ~is_among(found.rows, unusable)
            self._add_found(buckets, found.source[use], found.destination[use], found.rows[use])
        all_bad = np.unique(np.concatenate(bad))
        if files.can_have_problems:
            self._write_tables(files, buckets.batch_edges, all_bad)
        return _edges_of_rows(all_bad) if self._repeat == 2 else all_bad

    def _add_found(
        self,
        buckets: EdgeBuckets,
        source: NDArray[np.int64],
        destination: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> None:
        if self._repeat == 2:
            source, destination = _both_directions(source, destination)
            rows = _edges_of_rows(rows)
        if not buckets.add(source, destination, rows):
            raise RuntimeError("a looked-up number is out of range")

    def _keys(
        self, places: RowPlaces, most_edges: int, bad: list[NDArray[np.int64]]
    ) -> Iterator[tuple[NDArray[np.int64], Any, Any]]:
        """Yields numbers and ends of all rows. Rows without an end are reported and left out."""
        with self._batches(self._ends, 0, most_edges, "read") as batches:
            for batch in batches:
                problems, rows = Problems(), places.of(batch)
                ends = []
                for name, ids, what in zip(
                    self._ends, self._ids, ("source", "destination"), strict=True
                ):
                    found = Problems()
                    column = batch.columns[name]
                    if ids is None:
                        ends.append(to_dense_ids(column, found).astype(np.int64))
                    else:
                        ends.append(to_keys(column, ids.as_text, found))
                    problems.add_all(found, f"the {what}")
                self._workspace.bad_rows.add_batch(batch, problems)
                without_id = problems.any(len(batch))
                if without_id.any():
                    bad.append(rows[without_id])
                    kept = np.flatnonzero(~without_id)
                    ends, rows = [end.take(kept) for end in ends], rows[kept]
                yield rows, ends[0], ends[1]

    def _report_unknown(
        self, places: RowPlaces, rows: NDArray[np.int64], ids: Any, mask: Any, name: str
    ) -> None:
        values = (str(ids[int(i)]) for i in np.flatnonzero(mask))
        for row, value in zip(rows, values, strict=True):
            file, number = places.place(int(row))
            reason = f"no node has the {name} id"
            self._workspace.bad_rows.add(file, reason, [number], [value])

    def _rows_without_values(self, buckets: EdgeBuckets, files: TableFiles) -> NDArray[np.int64]:
        """Returns the numbers of rows without a value for a table, ascending; reports them."""
        if not files.can_have_problems:
            return np.empty(0, np.int64)
        numbers, places, bad = RowNumbers(), RowPlaces(), [np.empty(0, np.int64)]
        columns = files.columns or [self._ends[0]]
        array_bytes, most = files.array_row_bytes, buckets.batch_edges
        with self._batches(columns, array_bytes, most, "check") as batches:
            for batch in batches:
                problems, rows = Problems(), numbers.of(batch)
                files.read(batch, rows, problems)
                rows = places.of(batch)
                self._workspace.bad_rows.add_problems(batch, problems)
                bad.append(rows[problems.any(len(rows))])
        return np.concatenate(bad)

    def _write_tables(
        self, files: TableFiles, most_edges: int, left_out: NDArray[np.int64]
    ) -> None:
        numbers, places = RowNumbers(), RowPlaces()
        columns = files.columns or [self._ends[0]]
        array_bytes = files.array_row_bytes
        with self._batches(columns, array_bytes, most_edges, "tables of") as batches:
            for batch in batches:
                rows = numbers.of(batch)
                values = files.read(batch, rows, Problems())
                files.write(values, rows, ~is_among(places.of(batch), left_out))
        if files.has_arrays:
            files.check_rows(numbers.total, f"edges {type_name(self._type)}")


def _both_directions(
    source: NDArray[Any], destination: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns sources and destinations ``[2 * rows]``: each edge is followed by its reverse."""
    both = np.stack([source, destination], axis=1)
    return both.reshape(-1), np.ascontiguousarray(both[:, ::-1]).reshape(-1)


def _edges_of_rows(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the numbers of the two edges of each row, where each edge is followed by its
    reverse.
    """
    return np.stack([2 * rows, 2 * rows + 1], axis=1).reshape(-1)
