"""The rows that can have the largest products, from a kernel that multiplies rows as they are
stored and writes few products.

Every product is off by at most an error that the norms of the two vectors bound. A row whose
product is below the k-th largest so far by more than the errors of both is not among the k, so its
product is not written. Rows are scanned in stages, each with all blocks of rows whose number is a
multiple of a step that the stages before did not have: the first stage is a sample, whose products
are all written, and each has bounds from those before it. The GPU is not waited for in between.
"""

from __future__ import annotations

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
_DTYPES = {"int8": torch.int8, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Candidates(NamedTuple):
    """Rows that can be among the k with the largest products.

    Args:
        places: int64 [Q, n], -1: none.
        open_queries: int64, ascending: those for which other rows can be, too.
    """

    places: Tensor
    open_queries: Tensor


@dataclass(frozen=True)
class _Rounded:
    """Queries as the kernel takes them: ``values * scales[:, None]`` are nearly the queries."""

    values: Tensor  # [Q, columns]
    scales: Tensor  # float32 [Q]
    error: Tensor  # float64 [Q]: of a product with a row of norm 1
    rounded_up: Tensor  # float32 [Q]: the error


class _Stage(NamedTuple):
    """The blocks of the rows [begin, end) of a piece whose number is a multiple of a step."""

    piece: LocalRows
    first_place: int
    begin: int
    end: int
    step: int
    skips_earlier: bool  # without those of the step before
    writes_all: bool


class ProductFilter:
    """Finds the rows that can have the k largest products with each query: of rows as they are
    stored where the kernel can read them, else of rows that are rounded to bfloat16, some at once.

    Args:
        queries: float64 [Q, columns].
        k: rows per query.
        dtype: the users' dtype of the rows.
        capacity: the most products of a query that are held at once.
    """

    def __init__(self, queries: Tensor, k: int, dtype: torch.dtype, capacity: int) -> None:
        count, device = len(queries), queries.device
        self.queries = queries
        self.k = k
        self.dtype = dtype
        self.capacity = capacity
        self._rounded: dict[tuple[str, bool], _Rounded] = {}
        self._norms = torch.linalg.vector_norm(queries, dim=1)
        self._error = torch.zeros_like(self._norms)  # the largest of all kinds so far
        self._products = torch.empty((count, capacity), dtype=torch.float32, device=device)
        self._places = torch.empty((count, capacity), dtype=torch.int64, device=device)
        self._counts, self._kept = torch.zeros((2, count), dtype=torch.int32, device=device)
        self._bounds = torch.full((count,), -torch.inf, device=device)
        self._largest_norm = torch.zeros(1, device=device)
        self._launch = launch_on(device)

    @staticmethod
    def supports(columns: int, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether there is a kernel for rows of so many columns, of any storage."""
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            return False
        return dtype != torch.float64 and 2 * columns in _ROW_BYTES

    def search(self, pieces: list[LocalRows], excluded: Tensor) -> Candidates:
        """Returns the rows of all pieces that can be among the k. Waits for the GPU.

        Args:
            excluded: int64, ascending: ``query * num_rows + place`` of pairs that are left out.
        """
        num_rows = sum(map(len, pieces))
        stages = list(self._stages(pieces))
        shape, device = (len(stages), len(self.queries)), self.queries.device
        overflowed = torch.zeros(shape, dtype=torch.bool, device=device)
        for stage, flags in zip(stages, overflowed, strict=True):
            self._run(stage, self._bounds, flags, excluded, num_rows)
        most, has_overflowed, is_finite = self._state(overflowed)
        if has_overflowed:
            # Bounds are higher now. Only queries without room for the products of a stage look for
            # them again.
            for number in overflowed.any(1).nonzero().flatten().tolist():
                bounds = torch.where(overflowed[number], self._bounds, torch.inf)
                overflowed[number] = False
                self._run(stages[number], bounds, overflowed[number], excluded, num_rows)
            most, has_overflowed, _ = self._state(overflowed)
        is_place = torch.arange(most, device=device) < self._counts[:, None]
        places = torch.where(is_place, self._places[:, :most], -1)
        if not is_finite:
            return Candidates(places, torch.arange(len(places), device=device))
        if has_overflowed:
            return Candidates(places, overflowed.any(0).nonzero().flatten())
        return Candidates(places, torch.empty(0, dtype=torch.int64, device=device))

    def _state(self, overflowed: Tensor) -> tuple[int, bool, bool]:
        """Returns the most rows of a query, whether there was no room for all, and whether rows are
        finite. Waits for the GPU.
        """
        if not len(self.queries):
            return 0, False, True
        most, has_overflowed, is_finite = torch.stack(
            [self._counts.max(), overflowed.any(), self._largest_norm[0].isfinite()]
        ).tolist()
        return most, bool(has_overflowed), bool(is_finite)

    def _stages(self, pieces: list[LocalRows]) -> Iterator[_Stage]:
        place = 0
        for piece in pieces:
            at_once = self._rows_at_once(piece)
            for begin in range(0, len(piece), at_once):
                end = min(begin + at_once, len(piece))
                # As many rows as there is room for, or as bounds from earlier rows are good for.
                most = max(self.capacity, (_GROWTH - 1) * (place + begin))
                step = 1
                while step * _BLOCK_ROWS < end - begin and (
                    -(-(end - begin) // (step * _BLOCK_ROWS)) * _BLOCK_ROWS > most
                ):
                    step *= _GROWTH
                yield _Stage(piece, place, begin, end, step, False, place + begin == 0)
                while step > 1:
                    step //= _GROWTH
                    yield _Stage(piece, place, begin, end, step, True, False)
            place += len(piece)

    def _rows_at_once(self, piece: LocalRows) -> int:
        if self._kind(piece) is not None:
            return _MOST_ROWS
        return _DECODED_BYTES // (2 * self.queries.shape[1])

    def _run(
        self, stage: _Stage, bounds: Tensor, overflowed: Tensor, excluded: Tensor, num_rows: int
    ) -> None:
        """Finds the products of a stage that are above bounds, and raises the bounds."""
        piece, begin, end = stage.piece, stage.begin, stage.end
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
        row_bytes = rows.stride(0) * rows.element_size()
        scale_at, scale_bytes = 0, 0
        if scales is not None:
            scale_at, scale_bytes = scales.data_ptr(), scales.stride(0) * scales.element_size()
        elif kind == "int8" and codec is not None:
            scale_at, scale_bytes = rows.data_ptr() + codec.scales.start, row_bytes
        _C.large_products(
            kind=_C.ProductKind.__members__[kind],
            rows=rows.data_ptr(),
            num_rows=end - begin,
            row_bytes=row_bytes,
            scales=scale_at,
            scale_bytes=scale_bytes,
            stage=(stage.step, stage.skips_earlier, stage.writes_all),
            first_place=stage.first_place + begin,
            queries=rounded.values,
            query_scales=rounded.scales,
            bounds=bounds,
            errors=rounded.rounded_up,
            products=self._products,
            places=self._places,
            counts=self._counts,
            largest_norm=self._largest_norm,
            launch=self._launch,
        )
        _C.keep_largest(
            k=self.k,
            products=self._products,
            places=self._places,
            counts=self._counts,
            kept=self._kept,
            overflowed=overflowed,
            errors=self._error,
            norms=self._norms,
            # For values that are rounded to zero, or where a GPU flushes them.
            underflow=self.queries.shape[1] * LEAST_NORMAL,
            largest_norm=self._largest_norm,
            excluded=excluded,
            num_places=num_rows,
            bounds=self._bounds,
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
            self._error = torch.maximum(self._error, self._rounded[key].error)
        return self._rounded[key]

    def _round(self, kind: str, rounds_rows: bool) -> _Rounded:
        columns = self.queries.shape[1]
        largest = self.queries.abs().amax(1)
        steps = 127 if kind == "int8" else 1
        scales = torch.where(largest > 0, largest / steps, 1.0).float().clamp(min=LEAST_NORMAL)
        wide = scales.double()[:, None]
        values = self.queries / wide
        if kind == "int8":
            values = values.round_().clamp_(-127, 127)
        values = values.to(_DTYPES[kind]).contiguous()
        rest = torch.linalg.vector_norm(self.queries - values * wide, dim=1)
        # Products and sums are rounded to float32, and thresholds.
        relative = 2.0**-19 + columns * 2.0**-22 + (2.0**-8 if rounds_rows else 0)
        error = rest * (1 + 2.0**-40) + self._norms * relative
        return _Rounded(values, scales, error, (error * (1 + 2.0**-20)).float())

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
