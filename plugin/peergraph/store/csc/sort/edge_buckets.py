"""Edges in buckets by destination: edges that do not fit into memory are written to files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.store.csc.sort.edge_run import EdgeRun, RunOrder, SortedEdges, record_dtype
from peergraph.store.csc.sort.large_bucket import sort_large_bucket
from peergraph.store.hotness.id_map import id_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EDGES_PER_BUCKET = 1 << 18  # their results fit into a core's cache
_NODES_PER_BUCKET = 1 << 17
_MOST_BUCKETS = 4096
_LINE_BYTES = 64
_MOST_SHIFT = 31  # destinations within a bucket are int32
_MOST_WIDTH_SHARE = 128  # bytes of memory for each destination of a bucket
_SORT_BYTES = 48  # of an edge that is being sorted: its run, a copy of large buckets, the result
_MOST_SORTED = 2**32 - 1  # of sort_bucket
# Bytes of an edge of a batch: converted, split, and read ahead.
_SPLIT_BYTES = 256


class EdgeBuckets:
    """Takes the edges of one relation batch by batch, and returns them sorted by destination.

    Args:
        folder: an existing folder for the buckets' files; None: all edges stay in memory.
        num_sources, num_destinations: the limits of the ids.
        expected_edges: an estimate of the number of edges, which determines the number of buckets.
        memory: the number of bytes to use. A larger bucket is sorted in pieces.
        first_destination: edges are taken to this destination and the next `num_destinations`.
        threads: the number of threads; None: torch's.
    """

    def __init__(
        self,
        folder: Path | None,
        num_sources: int,
        num_destinations: int,
        expected_edges: int,
        memory: int,
        *,
        first_destination: int = 0,
        threads: int | None = None,
    ) -> None:
        self.num_edges = 0
        self.is_sorted = True
        """Whether the edges were added in order of destination."""
        self.index_dtype = id_dtype(num_sources)
        """The dtype of sources: the narrowest that holds their ids."""
        self._folder, self._memory = folder, memory
        self._num_sources, self._num_destinations = num_sources, num_destinations
        self._first_destination = first_destination
        self._threads = torch.get_num_threads() if threads is None else threads
        most_edges = max(1, min(_EDGES_PER_BUCKET, memory // (8 * _SORT_BYTES)))
        by_nodes = num_destinations // _NODES_PER_BUCKET if expected_edges > most_edges else 0
        num_buckets = max(1, min(max(-(-expected_edges // most_edges), by_nodes), _MOST_BUCKETS))
        width = -(-max(1, num_destinations) // num_buckets)
        # Few edges to very many destinations: the counts of a bucket fit the memory, too.
        most_width = max(1 << 16, memory // _MOST_WIDTH_SHARE)
        self._shift = min(_MOST_SHIFT, (min(width, most_width) - 1).bit_length())
        count = (max(0, num_destinations - 1) >> self._shift) + 1
        self._dtype = record_dtype(self.index_dtype)
        self._degrees = np.zeros(count, np.int64)  # edges of each bucket
        # The first batches are in the buckets' files. The others are in memory: the records of
        # each batch, and the position in them at which each bucket begins.
        self._pending: list[Tensor] = []
        self._begins: list[NDArray[np.int32]] = []
        self._first_edges: list[int] = []  # the id of the first edge of each batch
        self._written: list[Tensor] = []  # memory of batches that are in files, to be used again
        self._last_destination = -1
        self._pending_bytes = 0
        self._next_id = 0

    @staticmethod
    def batch_edges(memory: int) -> int:
        """Returns the number of edges that a batch should have, so that it fits into memory."""
        return max(1 << 10, min(4 << 20, memory // 4 // _SPLIT_BYTES))

    def add(self, source: NDArray[Any], destination: NDArray[Any]) -> bool:
        """Adds all edges of a batch, or none. Their ids follow those before.

        Args:
            source, destination: [n] int32 or int64, both of one dtype, contiguous.

        Returns:
            Whether the edges were added: False if an id is out of range.
        """
        count = len(source)
        records, counts, is_sorted = self._split(source, destination)
        if int(counts.sum()) < count:
            return False
        if count:
            self.is_sorted &= is_sorted and int(destination[0]) >= self._last_destination
            self._last_destination = int(destination[-1])
            self._keep(records, counts, count)
        return True

    def select(self, source: NDArray[Any], destination: NDArray[Any], first_edge: int) -> None:
        """Adds those edges of a batch whose ends are in range.

        Args:
            source, destination: as in :meth:`add`.
            first_edge: the id of the first edge of the batch.
        """
        self._next_id = first_edge
        records, counts, _ = self._split(source, destination)
        if int(counts.sum()):
            self._keep(records, counts, len(source))

    def _split(
        self, source: NDArray[Any], destination: NDArray[Any]
    ) -> tuple[Tensor, Tensor, bool]:
        """Returns the records of the edges whose ends are in range, the number of edges of each
        bucket, and whether the batch is sorted.
        """
        records = self._memory_for(len(source) * self._dtype.itemsize)
        counts = torch.empty(len(self._degrees), dtype=torch.int64, device="cpu")
        _, is_sorted = _C.partition_edges(
            source=torch.from_numpy(source),
            destination=torch.from_numpy(destination),
            num_sources=self._num_sources,
            first_destination=self._first_destination,
            num_destinations=self._num_destinations,
            shift=self._shift,
            source_bytes=self.index_dtype.itemsize,
            records=records,
            counts=counts,
            num_threads=self._threads,
        )
        return records, counts, is_sorted

    def _keep(self, records: Tensor, counts: Tensor, num_ids: int) -> None:
        """Keeps a batch's records in memory, or writes those of the oldest batches to files."""
        self._degrees += counts.numpy()
        begins = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts.numpy(), out=begins[1:])
        self._begins.append(begins)
        self._first_edges.append(self._next_id)
        self._pending.append(records)
        self._next_id += num_ids
        self.num_edges += int(begins[-1])
        self._pending_bytes += records.numel()
        if self._folder is not None and self._pending_bytes > self._memory // 2:
            self._write_oldest()

    def sorted_edges(self, edge_id_dtype: torch.dtype | None) -> Iterator[SortedEdges]:
        """Yields all edges by destination, and removes them; several threads sort.

        Args:
            edge_id_dtype: the dtype of the edge ids; None: no edge ids.
        """
        self._written.clear()
        order = RunOrder(self.index_dtype, edge_id_dtype)
        threads = self._threads
        most_edges = min(self._memory // 2 // _SORT_BYTES, _MOST_SORTED)
        if len(self._degrees) == 1 and self.num_edges <= most_edges:
            yield self._sort(0, order)
            return
        waiting: list[tuple[int, Future[SortedEdges]]] = []
        waiting_edges = 0
        with ThreadPoolExecutor(threads, "peergraph_sort") as pool:
            for number, count in enumerate(self._degrees.tolist()):
                while waiting and (
                    len(waiting) > 2 * threads or waiting_edges + count > most_edges
                ):
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

    def _memory_for(self, num_bytes: int) -> Tensor:
        """Returns uint8 memory of that size. Memory that was used before needs no zeros from the
        system.
        """
        while self._written:
            memory = self._written.pop()
            if memory.numel() >= num_bytes:
                return memory[:num_bytes]
        return _whole_lines(num_bytes)

    def _sort(self, number: int, order: RunOrder) -> SortedEdges:
        edges = order.sort(self._runs(number, True), self._width(number))
        self._remove(number)
        return edges

    def _sort_large(self, number: int, most_edges: int, order: RunOrder) -> Iterator[SortedEdges]:
        yield from sort_large_bucket(
            lambda: self._runs(number, False), self._width(number), max(1, most_edges), order
        )
        self._remove(number)

    def _width(self, number: int) -> int:
        """Destinations of a bucket."""
        return min(1 << self._shift, self._num_destinations - (number << self._shift))

    def _path(self, number: int) -> str:
        return f"{self._folder}/bucket{number}"

    def _remove(self, number: int) -> None:
        if self._folder is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._path(number))

    def _runs(self, number: int, at_once: bool) -> Iterator[EdgeRun]:
        """Yields the runs of a bucket, one after the other, as they came.

        Args:
            number: the number of the bucket.
            at_once: whether its file is read at once, and not a run at a time.
        """
        if self._folder is not None and os.path.exists(self._path(number)):
            yield from self._runs_of_file(self._path(number), at_once)
        first_edges = self._first_edges[len(self._first_edges) - len(self._pending) :]
        for memory, begins, first in zip(self._pending, self._begins, first_edges, strict=True):
            begin, end = begins[number : number + 2].tolist()
            if begin < end:
                yield EdgeRun(memory, self._dtype, begin, end - begin, first)

    def _runs_of_file(self, path: str, at_once: bool) -> Iterator[EdgeRun]:
        """Yields the runs of a bucket's file; each begins with a header record."""
        with open(path, "rb") as file:
            while len(records := np.fromfile(file, self._dtype, -1 if at_once else 1)):
                if not at_once:
                    run = np.fromfile(file, self._dtype, int(records["destination"][0]))
                    records = np.concatenate([records, run])
                memory, begin = torch.from_numpy(records.view(np.uint8)), 0
                while begin < len(records):
                    header = records[begin]
                    count, first = int(header["destination"]), self._first_edges[header["edge"]]
                    yield EdgeRun(memory, self._dtype, begin + 1, count, first)
                    begin += 1 + count

    def _write_oldest(self) -> None:
        """Appends a quarter of the records in memory to the buckets' files; several threads write.
        The rest stays, because it may never need files.
        """
        oldest = self._pending[: max(1, len(self._pending) // 4)]
        first = len(self._first_edges) - len(self._pending)
        begins = np.array(self._begins[: len(oldest)])
        headers = np.zeros((len(oldest), len(self._degrees)), self._dtype)
        headers["destination"] = np.diff(begins, axis=1)
        headers["edge"] = np.arange(first, first + len(oldest))[:, None]
        records = [memory.numpy().view(self._dtype) for memory in oldest]

        def write(number: int) -> None:
            runs = zip(records, headers, begins[:, number : number + 2].tolist(), strict=True)
            with open(self._path(number), "ab") as file:
                for batch, header, (begin, end) in runs:
                    if begin < end:
                        file.write(header[number].tobytes())
                        file.write(batch[begin:end].data)

        with ThreadPoolExecutor(self._threads, "peergraph_write") as pool:
            for _ in pool.map(write, range(len(self._degrees))):
                pass
        self._written, self._pending = oldest, self._pending[len(oldest) :]
        self._begins = self._begins[len(oldest) :]
        self._pending_bytes -= sum(memory.numel() for memory in oldest)


def _whole_lines(num_bytes: int) -> Tensor:
    """Returns uint8 memory that begins with a line of the cache. NumPy requests huge pages."""
    memory = np.empty(num_bytes + _LINE_BYTES, np.uint8)
    begin = -memory.ctypes.data % _LINE_BYTES
    return torch.from_numpy(memory[begin : begin + num_bytes])
