"""Tensors that one rank has, read by all ranks piece by piece from memory that they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.control_groups import usable_cpus
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.group.group import Group
from peergraph.memory.region.region import SharedRegion

# The size of a piece. There are two: one is filled while the ranks read the other.
_PIECE_BYTES = {"cpu": 16 << 20, "cuda": 128 << 20}
_ALIGN = 64
_LEAST_COPY = 4 << 20  # bytes of a thread's copy
_LEAST_FOR_THREADS = 64 << 10
# More threads than this do not copy faster than the memory.
_MOST_THREADS = 16

Range = tuple[int, int]


@dataclass(frozen=True)
class Column:
    """What all ranks know of a tensor ``[rows, ...]`` that one of them has."""

    dtype: torch.dtype
    row_shape: tuple[int, ...] = ()

    @property
    def row_bytes(self) -> int:
        """The bytes of a row."""
        return math.prod(self.row_shape) * self.dtype.itemsize


class Staging:
    """Two pieces of memory that all ranks map, pinned for GPUs: threads of one rank copy its
    tensors there, and each rank takes from there what it needs.

    The memory is allocated at the first use. :meth:`run` and :meth:`close` are collective.

    Args:
        group: the ranks of one machine.
        holder: the rank that has the tensors.
        piece_bytes: the size of a piece; None: 16 MB, for GPUs 128 MB.
    """

    def __init__(self, group: Group, holder: int, piece_bytes: int | None = None) -> None:
        self.group = group
        self.holder = holder
        self._piece_bytes = piece_bytes or _PIECE_BYTES[group.device.type]
        self._region: SharedRegion | None = None
        self._pool: ThreadPoolExecutor | None = None

    @property
    def is_holder(self) -> bool:
        """Whether this rank has the tensors."""
        return self.group.rank == self.holder

    def steps(self, rows: int, columns: Sequence[Column]) -> list[Range]:
        """Returns consecutive ranges of rows that fill a piece each."""
        row_bytes = sum(column.row_bytes for column in columns)
        step = max(1, (self._piece_bytes - _ALIGN * len(columns)) // max(1, row_bytes))
        return [(begin, min(begin + step, rows)) for begin in range(0, rows, step)]

    def steps_of_parts(
        self, parts: Sequence[Range], columns: Sequence[Column]
    ) -> list[list[Range]]:
        """Returns steps in which each rank gets a range of its part of the rows."""
        row_bytes = sum(column.row_bytes for column in columns)
        room = self._piece_bytes // len(parts) - _ALIGN * len(columns)
        step = max(1, room // max(1, row_bytes))
        longest = max(end - begin for begin, end in parts)
        return [
            [(min(b + done, e), min(b + done + step, e)) for b, e in parts]
            for done in range(0, longest, step)
        ]

    def run(
        self,
        tensors: Sequence[Tensor] | None,
        columns: Sequence[Column],
        steps: Sequence[Sequence[Range]],
        use: Callable[[int, list[list[Tensor]]], object],
    ) -> None:
        """Calls ``use(number, ranges)`` on every rank for each step. Collective; if a rank fails,
        every rank raises its error.

        Args:
            tensors: on the holder, a tensor for each column; all with the same number of rows.
            columns: the dtypes and row shapes of the tensors, the same on every rank.
            steps: the ranges of rows of each step, the same on every rank.
            use: gets the rows of each range, one tensor for each column, in memory that is
                overwritten later. The group's GPU has finished with it before the next step.
        """
        if self.group.world_size == 1 and tensors is not None and self._in_place(tensors):
            for number, ranges in enumerate(steps):
                use(number, [[tensor[b:e] for tensor in tensors] for b, e in ranges])
            return
        for tensor in tensors or ():
            if tensor.is_cuda:  # Threads copy in another stream than the one that made it.
                torch.cuda.synchronize(tensor.device)
        places = [_places(ranges, columns) for ranges in steps]
        self._reserve(max((size for _, size in places), default=0))
        copies: list[Future[object]] = []

        def fill(number: int) -> None:
            copies.clear()
            if tensors is None or not self.is_holder or number >= len(steps):
                return
            views = self._views(number, places[number][0])
            for (begin, end), targets in zip(steps[number], views, strict=True):
                for tensor, target in zip(tensors, targets, strict=True):
                    copies.extend(self._copy(tensor[begin:end], target))

        def turn(number: int) -> None:
            fill(number + 1)  # All ranks have finished with that piece.
            if number >= 0:
                use(number, self._views(number, places[number][0]))
                self._finish()
            for copy in copies:
                copy.result()

        try:
            for number in range(-1, len(steps)):
                collective_call(self.group, lambda number=number: turn(number))  # type: ignore[misc]
        finally:
            wait(copies)

    def close(self) -> None:
        """Frees the memory. Collective."""
        region, self._region = self._region, None
        if region is not None:
            region.close()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _copy(self, rows: Tensor, target: Tensor) -> list[Future[object]]:
        """Copies rows in several threads; a few bytes at once."""
        if target.nbytes < _LEAST_FOR_THREADS:
            target.copy_(rows)
            return []
        threads = _copy_threads()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(threads, "peergraph_stage")
        pieces = max(1, min(threads, target.nbytes // _LEAST_COPY))
        step = -(-len(rows) // pieces)
        return [
            self._pool.submit(target[begin : begin + step].copy_, rows[begin : begin + step])
            for begin in range(0, len(rows), step)
        ]

    def _in_place(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a rank without others can as well read the tensors where they are."""
        return all(tensor.device == self.group.device for tensor in tensors)

    def _reserve(self, piece_bytes: int) -> None:
        if self._region is not None and self._region.sizes[self.holder] >= 2 * piece_bytes:
            return
        if self._region is not None:
            self._region.close()
        owned = 2 * piece_bytes if self.is_holder else 0
        self._region = SharedRegion.create(owned, self.group, "cpu", huge_pages=False)

    def _views(
        self, number: int, places: list[list[tuple[int, int, Column]]]
    ) -> list[list[Tensor]]:
        assert self._region is not None
        size = self._region.sizes[self.holder]
        memory = self._region.part(self.holder, torch.uint8, (size,))
        piece = memory[size // 2 * (number % 2) :]
        return [
            [
                piece[at : at + rows * column.row_bytes]
                .view(column.dtype)
                .view(rows, *column.row_shape)
                for at, rows, column in of_range
            ]
            for of_range in places
        ]

    def _finish(self) -> None:
        if self.group.device.type == "cuda":
            torch.cuda.current_stream(self.group.device).synchronize()


def _places(
    ranges: Sequence[Range], columns: Sequence[Column]
) -> tuple[list[list[tuple[int, int, Column]]], int]:
    """Returns the offset, the rows and the column of each tensor of a piece, and the piece's
    bytes.
    """
    at, places = 0, []
    for begin, end in ranges:
        of_range = []
        for column in columns:
            of_range.append((at, end - begin, column))
            at += -(-(end - begin) * column.row_bytes // _ALIGN) * _ALIGN
        places.append(of_range)
    return places, at


def _copy_threads() -> int:
    """Returns how many threads copy: one a processor, because the other ranks wait meanwhile."""
    return min(_MOST_THREADS, usable_cpus())
