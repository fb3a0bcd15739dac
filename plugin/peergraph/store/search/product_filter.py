"""The rows that can have the largest products, from a kernel that multiplies rows as they are
stored and writes few products.

Every product is off by at most an error that the norms of the two vectors bound. A row whose
product is below the k-th largest so far by more than the errors of both is not among the k, so its
product is not written. Rows are scanned in stages, each with all blocks of rows whose number is a
multiple of a step that the stages before did not have: the first stage is a sample, whose products
are all written, and each has bounds from those before it. The GPU is not waited for in between.

The k-th largest of a sample is far below that of all rows. A filter that guesses takes one of a
lower rank, and finds out in the end whether it was too high.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import launch_on
from peergraph.memory.table.local_rows import LocalRows

LEAST_NORMAL = 2.0**-126
_ROW_BYTES = (64, 128, 256, 512)
_ALIGN = 16
_MOST_ROWS = 1 << 30
_DECODED_BYTES = 64 << 20  # of rows that are decoded for the kernel
_BLOCK_ROWS, _GROWTH = 128, 4  # as in large_products.h
_INFINITY_BITS = 0x7F800000  # of float32; NaNs are above, or negative
_DTYPES = {"int8": torch.int8, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Candidates:
    """Rows that can be among the k with the largest products.

    Args:
        places: int64 [Q, n] internal rows.
        counts: int32 [Q] of a query, the first ones.
        most: not below any count.
        open_queries: int64, ascending: those for which other rows can be, too.
    """

    places: Tensor
    counts: Tensor
    most: int
    open_queries: Tensor


@dataclass(frozen=True)
class _Rounded:
    """Queries as the kernel takes them: ``values * scales[:, None]`` are nearly the queries."""

    values: Tensor  # [Q, columns]
    scales: Tensor  # float32 [Q]
    norms: Tensor  # float64 [Q]: of the queries
    error: Tensor  # float64 [Q]: of a product with a row of norm 1
    rounded_up: Tensor  # float32 [Q]: the error


_Stage = tuple[int, bool, bool, int, bool]
"""The blocks whose number is a multiple of a step; whether those of the step before are left out;
whether all products are written; the rank of the product that bounds later ones; whether there are
none.
"""


class _Chunk(NamedTuple):
    """The rows [begin, end) of a piece, and the stages in which they are scanned."""

    piece: LocalRows
    begin: int
    end: int
    stages: list[_Stage]


class ProductFilter:
    """Finds the rows that can have the k largest products with each query: of rows as they are
    stored where the kernel can read them, else of rows that are rounded to bfloat16, some at once.

    Args:
        queries: float64 [Q, columns].
        k: rows per query.
        dtype: the users' dtype of the rows.
        capacity: the most products of a query that are held at once.
        guesses: whether bounds are those that all rows have almost surely. Of a query for which
            this, or the room, did not suffice nothing is found. Without, it is searched for again.
    """

    def __init__(
        self, queries: Tensor, k: int, dtype: torch.dtype, capacity: int, guesses: bool
    ) -> None:
        count, device = len(queries), queries.device
        self.queries = queries
        self.k = k
        self.dtype = dtype
        self.capacity = capacity
        self.guesses = guesses
        self._rounded: dict[tuple[str, bool], _Rounded] = {}
        self._error: Tensor | None = None  # the largest of all kinds so far
        self._products = torch.empty((count, capacity), dtype=torch.float32, device=device)
        self._places = torch.empty((count, capacity), dtype=torch.int64, device=device)
        zeros = torch.zeros(2 * count + 3, dtype=torch.int32, device=device)
        self._counts, self._candidates = zeros[:count], zeros[count : 2 * count]
        self._bounds = torch.full((count,), -torch.inf, device=device)
        # The most rows of a query, whether a query has failed, and the bits of the largest norm.
        self._state = zeros[2 * count :]
        self._launch = launch_on(device)

    @staticmethod
    def supports(columns: int, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether there is a kernel for rows of so many columns, of any storage."""
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            return False
        return dtype != torch.float64 and 2 * columns in _ROW_BYTES

    def search(self, pieces: list[LocalRows], excluded: Tensor, num_places: int) -> Candidates:
        """Returns the rows of all pieces that can be among the k. Waits for the GPU.

        Args:
            excluded: int64, ascending: ``query * num_places + place`` of pairs that are left out.
            num_places: above all internal rows.
        """
        chunks = list(self._chunks(pieces))
        parts = [(chunk, stage) for chunk in chunks for stage in chunk.stages]
        shape, device = (len(parts), len(self.queries)), self.queries.device
        failed = torch.zeros(shape, dtype=torch.bool, device=device)
        first = 0
        for chunk in chunks:
            flags = failed[first : first + len(chunk.stages)]
            self._run(chunk, chunk.stages, self._bounds, flags, excluded, num_places)
            first += len(chunk.stages)
        most, has_failed, norm_bits = self._state.tolist()
        is_finite = 0 <= norm_bits < _INFINITY_BITS
        if has_failed and not self.guesses:
            # Bounds are higher now. Only queries without room for the products of a stage look for
            # them again.
            self._state.zero_()
            for number in failed.any(1).nonzero().flatten().tolist():
                above = torch.where(failed[number], self._bounds, torch.inf)
                failed[number] = False
                chunk, (step, skips_earlier, writes_all, rank, _) = parts[number]
                stage = step, skips_earlier, writes_all, rank, True
                flags = failed[number : number + 1]
                self._run(chunk, [stage], above, flags, excluded, num_places)
            most, has_failed, _ = self._state.tolist()
        if not is_finite:
            open_queries = torch.arange(len(self.queries), device=device)
        elif has_failed:
            open_queries = failed.any(0).nonzero().flatten()
        else:
            open_queries = torch.empty(0, dtype=torch.int64, device=device)
        return Candidates(self._places, self._counts, most, open_queries)

    def _chunks(self, pieces: list[LocalRows]) -> Iterator[_Chunk]:
        place, num_rows = 0, sum(map(len, pieces))
        for piece in pieces:
            at_once = self._rows_at_once(piece)
            for begin in range(0, len(piece), at_once):
                end = min(begin + at_once, len(piece))
                stages = self._stages(place + begin, end - begin, place + end == num_rows)
                yield _Chunk(piece, begin, end, stages)
            place += len(piece)

    def _stages(self, rows_before: int, num_rows: int, is_last: bool) -> list[_Stage]:
        # As many rows as there is room for, or as bounds from earlier rows are good for.
        most = max(self.capacity, (_GROWTH - 1) * rows_before)

        def rows_of(step: int) -> int:
            return -(-num_rows // (step * _BLOCK_ROWS)) * _BLOCK_ROWS

        step = 1
        while step * _BLOCK_ROWS < num_rows and rows_of(step) > most:
            step *= _GROWTH
        stages = []
        skips_earlier = False
        while step:
            # Only a sample of all rows so far says what their k-th largest product is.
            rank = self.k if rows_before else self._rank(min(1.0, rows_of(step) / num_rows))
            writes_all = not (rows_before or skips_earlier)
            stages.append((step, skips_earlier, writes_all, rank, is_last and step == 1))
            step, skips_earlier = step // _GROWTH, True
        return stages

    def _rank(self, part: float) -> int:
        """Returns the rank, among products with a random part of the rows, of one that is below the
        k-th of all, but for one case in a million.
        """
        mean = part * self.k  # of the k largest, in this part
        return min(self.k, math.ceil(mean + 4.5 * math.sqrt(mean) + 5)) if self.guesses else self.k

    def _rows_at_once(self, piece: LocalRows) -> int:
        if self._kind(piece) is not None:
            return _MOST_ROWS
        return _DECODED_BYTES // (2 * self.queries.shape[1])

    def _run(
        self,
        chunk: _Chunk,
        stages: list[_Stage],
        above: Tensor,
        failed: Tensor,
        excluded: Tensor,
        num_places: int,
    ) -> None:
        """Finds the products of stages, those of the first one above bounds, and raises the bounds
        after each.
        """
        piece, begin, end, _ = chunk
        kind, codec, scales = self._kind(piece), piece.codec, piece.scales
        rounds_rows = kind is None
        if kind is None:
            kind, codec, scales = "bfloat16", None, None
            rows = piece.block(begin, end, torch.bfloat16, self.queries.device).contiguous()
        else:
            rows = piece.stored[begin:end]
            scales = None if scales is None else scales[begin:end]
            rounds_rows = codec is not None and self.dtype != torch.float32
        rounded = self._queries(kind, rounds_rows)
        assert self._error is not None
        row_bytes = rows.stride(0) * rows.element_size()
        scale_at, scale_bytes = 0, 0
        if scales is not None:
            scale_at, scale_bytes = scales.data_ptr(), scales.stride(0) * scales.element_size()
        elif kind == "int8" and codec is not None:
            scale_at, scale_bytes = rows.data_ptr() + codec.scales.start, row_bytes
        _C.find_large_products(
            kind=_C.ProductKind.__members__[kind],
            rows=rows.data_ptr(),
            num_rows=end - begin,
            row_bytes=row_bytes,
            scales=scale_at,
            scale_bytes=scale_bytes,
            stages=stages,
            place=(piece.first + begin * piece.step, piece.step),
            queries=rounded.values,
            query_scales=rounded.scales,
            errors=rounded.rounded_up,
            exact_errors=self._error,
            norms=rounded.norms,
            # For values that are rounded to zero, or where a GPU flushes them.
            underflow=self.queries.shape[1] * LEAST_NORMAL,
            excluded=excluded,
            num_places=num_places,
            above=above,
            bounds=self._bounds,
            guesses=self.guesses,
            products=self._products,
            places=self._places,
            counts=self._counts,
            kept=self._candidates,
            largest_norm=self._state[2:].view(torch.float32),
            failed=failed,
            state=self._state,
            launch=self._launch,
        )

    def _queries(self, kind: str, rounds_rows: bool) -> _Rounded:
        """Returns the queries for a kind of kernel.

        Args:
            rounds_rows: whether users see, or the kernel reads, rows that are rounded to two bytes.
        """
        key = kind, rounds_rows
        if key not in self._rounded:
            self._rounded[key] = self._round(kind, rounds_rows)
            error = self._rounded[key].error
            self._error = error if self._error is None else torch.maximum(self._error, error)
        return self._rounded[key]

    def _round(self, kind: str, rounds_rows: bool) -> _Rounded:
        (count, columns), device = self.queries.shape, self.queries.device
        values = torch.empty((count, columns), dtype=_DTYPES[kind], device=device)
        scales, rounded_up = torch.empty((2, count), dtype=torch.float32, device=device)
        norms, error = torch.empty((2, count), dtype=torch.float64, device=device)
        _C.round_queries(
            kind=_C.ProductKind.__members__[kind],
            queries=self.queries,
            # Products and sums are rounded to float32, and thresholds.
            relative=2.0**-19 + columns * 2.0**-22 + (2.0**-8 if rounds_rows else 0),
            values=values,
            scales=scales,
            norms=norms,
            errors=error,
            rounded_up=rounded_up,
            launch=self._launch,
        )
        return _Rounded(values, scales, norms, error, rounded_up)

    def _kind(self, piece: LocalRows) -> str | None:
        """Returns the kind of kernel that reads stored rows; None: they must be decoded."""
        stored, codec = piece.stored, piece.codec
        if codec is None:
            kind = {torch.bfloat16: "bfloat16", torch.float16: "float16"}.get(stored.dtype)
        elif codec.stored == "int8":
            kind = "int8" if codec.num_groups == 1 else None
        else:
            kind = codec.stored if codec.stored in ("bfloat16", "float16") else None
        if kind is None or stored.device != self.queries.device:
            return None
        value_bytes = self.queries.shape[1] * _DTYPES[kind].itemsize
        row_bytes = stored.stride(0) * stored.element_size()
        aligned = stored.data_ptr() % _ALIGN == 0 and row_bytes % _ALIGN == 0
        return kind if aligned and value_bytes in _ROW_BYTES else None
