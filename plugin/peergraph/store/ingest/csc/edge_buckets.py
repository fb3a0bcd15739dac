"""Edges in buckets by destination: edges that do not fit into memory are written to files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import peergraph._C as _C
from peergraph.store.hotness.id_map import id_dtype
from peergraph.store.ingest.csc.edge_run import (
    EdgeRun,
    RunOrder,
    SortedEdges,
    read_run,
    write_runs,
)
from peergraph.store.ingest.csc.large_bucket import sort_large_bucket
from peergraph.store.ingest.values.read_only import as_tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EDGES_PER_BUCKET = 1 << 18  # their results fit into a core's cache
_NODES_PER_BUCKET = 1 << 17
_MOST_BUCKETS = 1024
_MOST_SHIFT = 31  # destinations within a bucket are int32
# Bytes of an edge that is being sorted: its run, a copy of large buckets, the result.
_SORT_BYTES, _SORT_BY_EDGE_BYTES = 48, 56
_READ_BYTES = 128  # of an edge of a batch: as it is read, converted, and partitioned


@dataclass
class _Bucket:
    """The edges of a range of destinations: the edges in the file come before those in memory."""

    num_edges: int = 0
    in_file: list[tuple[int, int]] = field(default_factory=list)  # edges, first edge id of a run
    in_memory: list[EdgeRun] = field(default_factory=list)


class EdgeBuckets:
    """Takes the edges of one relation batch by batch, and returns them sorted by destination.

    Args:
        folder: an existing folder for the buckets' files.
        num_sources, num_destinations: the limits of the ids.
        expected_edges: an estimate of the number of edges, which determines the number of buckets.
        memory: the number of bytes to use. A larger bucket is sorted in pieces.
        by_edge: whether edges are added in any order, with their ids; a destination's edges are
            then sorted by id. Otherwise an edge's id is its position.
    """

    def __init__(
        self,
        folder: Path,
        num_sources: int,
        num_destinations: int,
        expected_edges: int,
        memory: int,
        by_edge: bool = False,
    ) -> None:
        self.num_edges = 0
        self.is_sorted = not by_edge
        """Whether the edges were added in order of destination."""
        self.index_dtype = id_dtype(num_sources)
        """The dtype of sources: the narrowest that holds their ids."""
        self._folder, self._memory, self._by_edge = folder, memory, by_edge
        self._num_sources, self._num_destinations = num_sources, num_destinations
        self._sort_bytes = _SORT_BY_EDGE_BYTES if by_edge else _SORT_BYTES
        most_edges = max(1, min(_EDGES_PER_BUCKET, memory // (8 * self._sort_bytes)))
        by_nodes = num_destinations // _NODES_PER_BUCKET if expected_edges > most_edges else 0
        wanted = max(1, min(max(-(-expected_edges // most_edges), by_nodes), _MOST_BUCKETS))
        width = -(-max(1, num_destinations) // wanted)
        self._shift = min(_MOST_SHIFT, (width - 1).bit_length())
        count = (max(0, num_destinations - 1) >> self._shift) + 1
        self._buckets = [_Bucket() for _ in range(count)]
        self._last_destination = -1
        self._pending_bytes = 0

    @property
    def batch_edges(self) -> int:
        """The number of edges that a batch should have, so that it fits into the memory."""
        return max(1 << 10, min(4 << 20, self._memory // 4 // _READ_BYTES))

    def add(
        self,
        source: NDArray[Any],
        destination: NDArray[Any],
        edge_ids: NDArray[np.int64] | None = None,
    ) -> bool:
        """Adds all edges of a batch, or none.

        Args:
            source, destination: [n] int32 or int64, both of one dtype, contiguous.
            edge_ids: [n] the edges' ids if they are added in any order, else None.

        Returns:
            Whether the edges were added: False if an id is out of range.
        """
        if len(source) == 0:
            return True
        count = len(source)
        edge_dtype = torch.int64 if self._by_edge else torch.int32
        dtypes = (torch.int32, self.index_dtype, edge_dtype)
        out = [torch.empty(count, dtype=dtype, device="cpu") for dtype in dtypes]
        counts = torch.empty(len(self._buckets), dtype=torch.int64, device="cpu")
        num_bad, is_sorted = _C.partition_edges(
            source=as_tensor(source),
            destination=as_tensor(destination),
            edge_ids=None if edge_ids is None else as_tensor(edge_ids),
            num_sources=self._num_sources,
            num_destinations=self._num_destinations,
            shift=self._shift,
            out_destination=out[0],
            out_source=out[1],
            out_edge=out[2],
            counts=counts,
            num_threads=torch.get_num_threads(),
        )
        if num_bad:
            return False
        self.is_sorted &= is_sorted and int(destination[0]) >= self._last_destination
        self._last_destination = int(destination[-1])
        first_edge = 0 if self._by_edge else self.num_edges
        whole = EdgeRun.of((values.numpy() for values in out), first_edge)
        self._hand_out(whole, counts.numpy())
        self.num_edges += count
        self._pending_bytes += sum(array.nbytes for array in whole.arrays())
        if self._pending_bytes > self._memory // 3:
            self._write_pending()
        return True

    def sorted_edges(self, edge_id_dtype: torch.dtype | None) -> Iterator[SortedEdges]:
        """Yields all edges by destination, and removes them; several threads sort.

        Args:
            edge_id_dtype: the dtype of the edge ids; None: no edge ids.
        """
        order = RunOrder(self._by_edge, self.index_dtype, edge_id_dtype)
        threads = torch.get_num_threads()
        most_edges = self._memory // 2 // self._sort_bytes
        waiting: list[tuple[int, Future[SortedEdges]]] = []
        waiting_edges = 0
        with ThreadPoolExecutor(threads, "peergraph_sort") as pool:
            for number, bucket in enumerate(self._buckets):
                count = bucket.num_edges
                while waiting and (len(waiting) > threads or waiting_edges + count > most_edges):
                    done, sorting = waiting.pop(0)
                    yield sorting.result()
                    waiting_edges -= done
                if count <= most_edges:
                    waiting.append((count, pool.submit(self._sort, number, order)))
                    waiting_edges += count
                else:
                    yield from self._sort_large(number, most_edges, order)
            for _, sorting in waiting:
                yield sorting.result()

    def _hand_out(self, whole: EdgeRun, counts: NDArray[np.int64]) -> None:
        """Adds to each bucket its part of a batch that is ordered by bucket."""
        ends = np.cumsum(counts)
        for number in np.flatnonzero(counts):
            begin, end = int(ends[number] - counts[number]), int(ends[number])
            parts = (array[begin:end] for array in whole.arrays())
            self._buckets[number].in_memory.append(EdgeRun.of(parts, whole.first_edge))
            self._buckets[number].num_edges += end - begin

    def _sort(self, number: int, order: RunOrder) -> SortedEdges:
        found = order.sort(self._runs(number), self._width(number))
        self._forget(number)
        return found

    def _sort_large(self, number: int, most_edges: int, order: RunOrder) -> Iterator[SortedEdges]:
        yield from sort_large_bucket(
            lambda: self._runs(number), self._width(number), max(1, most_edges), order
        )
        self._forget(number)

    def _width(self, number: int) -> int:
        """Destinations of a bucket."""
        return min(1 << self._shift, self._num_destinations - (number << self._shift))

    def _path(self, number: int) -> Path:
        return self._folder / f"bucket{number}"

    def _forget(self, number: int) -> None:
        self._buckets[number] = _Bucket()
        self._path(number).unlink(missing_ok=True)

    def _runs(self, number: int) -> Iterator[EdgeRun]:
        """Yields the runs of a bucket, one after the other, as they came."""
        bucket, path = self._buckets[number], self._path(number)
        source_dtype = torch.empty(0, dtype=self.index_dtype, device="cpu").numpy().dtype
        edge_dtype = np.int64 if self._by_edge else np.int32
        if bucket.in_file:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for count, first_edge in bucket.in_file:
                    arrays = (np.empty(count, t) for t in (np.int32, source_dtype, edge_dtype))
                    run = EdgeRun.of(arrays, first_edge)
                    read_run(fd, path, run)
                    yield run
            finally:
                os.close(fd)
        yield from bucket.in_memory

    def _write_pending(self) -> None:
        """Appends the runs in memory to the buckets' files; several threads write."""
        pending = [number for number, bucket in enumerate(self._buckets) if bucket.in_memory]
        with ThreadPoolExecutor(torch.get_num_threads(), "peergraph_write") as pool:
            for _ in pool.map(self._write, pending):
                pass
        self._pending_bytes = 0

    def _write(self, number: int) -> None:
        bucket = self._buckets[number]
        write_runs(self._path(number), bucket.in_memory)
        bucket.in_file += [(len(run), run.first_edge) for run in bucket.in_memory]
        bucket.in_memory = []
