"""Products above thresholds, from a kernel that multiplies stored rows and writes no others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import launch_on
from peergraph.memory.table.local_rows import LocalRows

_ROW_BYTES = (64, 128, 256, 512)
_ALIGN = 16
_MOST_ROWS = 1 << 30
_DECODED_BYTES = 64 << 20  # of rows that are decoded for the kernel
_DTYPES = {"int8": torch.int8, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ROUNDING = {"bfloat16": 2.0**-9, "float16": 2.0**-11}  # of a value to the nearest


class Hits(NamedTuple):
    """Products of queries with a range of rows.

    Args:
        products: float32 [Q, n] in any order; ``-inf`` where a query has fewer.
        places: int64 [Q, n] the rows, counted from the begin of the range.
        largest_norm: float64 scalar, the largest norm of a row.
    """

    products: Tensor
    places: Tensor
    largest_norm: Tensor


@dataclass(frozen=True)
class _Rounded:
    """Queries as the kernel takes them: ``values * scales[:, None]`` are nearly the queries."""

    values: Tensor  # [Q, columns]
    scales: Tensor  # float32 [Q]
    error: Tensor  # float64 [Q]: of a product with a row of norm 1


class ProductFilter:
    """Finds products above thresholds: of rows as they are stored where the kernel can read them,
    else of rows that are rounded to bfloat16, some at a time.

    Args:
        queries: float64 [Q, columns].
        dtype: the users' dtype of the rows.
        capacity: the most products of a query with a range of rows.
    """

    def __init__(self, queries: Tensor, dtype: torch.dtype, capacity: int) -> None:
        self.queries = queries
        self.dtype = dtype
        self.capacity = capacity
        self._rounded: dict[tuple[str, bool], _Rounded] = {}

    @staticmethod
    def supports(columns: int, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether there is a kernel for rows of so many columns, of any storage."""
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            return False
        return dtype != torch.float64 and 2 * columns in _ROW_BYTES

    @property
    def error(self) -> Tensor:
        """The error of a product with a row of norm 1, float64 [Q]: the largest of all so far."""
        errors = [rounded.error for rounded in self._rounded.values()]
        return torch.stack(errors).amax(0) if errors else torch.zeros_like(self.queries[:, 0])

    def rows_at_once(self, piece: LocalRows) -> int:
        """Returns how many rows of a piece :meth:`find` takes, at most."""
        if self._kind(piece) is not None:
            return _MOST_ROWS
        return _DECODED_BYTES // (2 * self.queries.shape[1])

    def find(self, piece: LocalRows, begin: int, end: int, thresholds: Tensor) -> Hits | None:
        """Returns the products with the stored rows [begin, end) that are above the threshold of
        the query, float32 [Q]; None if there are more than the capacity. Waits for the GPU.
        """
        device = self.queries.device
        kind, codec, scales = self._kind(piece), piece.codec, piece.scales
        rounds_rows = kind is None
        if kind is None:
            kind, codec, scales = "bfloat16", None, None
            rows = piece.block(begin, end, torch.bfloat16, device).contiguous()
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
        count = len(self.queries)
        products = torch.empty((count, self.capacity), dtype=torch.float32, device=device)
        places = torch.empty((count, self.capacity), dtype=torch.int32, device=device)
        counts = torch.zeros(count, dtype=torch.int32, device=device)
        largest = torch.zeros(1, dtype=torch.float32, device=device)
        _C.large_products(
            kind=_C.ProductKind.__members__[kind],
            rows=rows.data_ptr(),
            num_rows=end - begin,
            row_bytes=row_bytes,
            scales=scale_at,
            scale_bytes=scale_bytes,
            queries=rounded.values,
            thresholds=thresholds / rounded.scales,
            products=products,
            places=places,
            counts=counts,
            largest_norm=largest,
            launch=launch_on(device),
        )
        most = int(counts.max()) if count else 0
        if most > self.capacity:
            return None
        is_hit = torch.arange(most, device=device) < counts[:, None]
        values = torch.where(is_hit, products[:, :most] * rounded.scales[:, None], -torch.inf)
        where = torch.where(is_hit, places[:, :most], 0).long()
        return Hits(values, where, largest.double().sqrt().squeeze(0) * (1 + 2.0**-20))

    def _queries(self, kind: str, rounds_rows: bool) -> _Rounded:
        """Returns the queries for a kind of kernel.

        Args:
            rounds_rows: whether users see, or the kernel reads, rows that are rounded to two bytes.
        """
        key = kind, rounds_rows
        if key not in self._rounded:
            self._rounded[key] = self._round(kind, rounds_rows)
        return self._rounded[key]

    def _round(self, kind: str, rounds_rows: bool) -> _Rounded:
        columns = self.queries.shape[1]
        norms = torch.linalg.vector_norm(self.queries, dim=1)
        largest = self.queries.abs().amax(1)
        steps = 127 if kind == "int8" else 1
        scales = torch.where(largest > 0, largest / steps, 1.0).float().clamp(min=2.0**-126)
        values = self.queries / scales.double()[:, None]
        # Products and sums are rounded to float32, and thresholds.
        error = norms * (2.0**-19 + columns * 2.0**-22)
        if rounds_rows:
            error = error + norms * 2.0**-8
        if kind == "int8":
            values = values.round().clamp(-127, 127)
            error = error + 0.5001 * scales.double() * columns**0.5
        else:
            error = error + norms * _ROUNDING[kind] + scales.double() * columns**0.5 * 2.0**-24
        return _Rounded(values.to(_DTYPES[kind]).contiguous(), scales, error)

    def _kind(self, piece: LocalRows) -> str | None:
        """Returns the kind of kernel that reads stored rows; None: they must be decoded."""
        stored, codec = piece.stored, piece.codec
        if codec is None:
            kind = {torch.bfloat16: "bfloat16", torch.float16: "float16"}.get(stored.dtype)
        elif codec.stored == "int8":
            kind = "int8" if codec.num_groups == 1 else None
        else:
            kind = codec.stored if codec.stored in _ROUNDING else None
        if kind is None or stored.device != self.queries.device:
            return None
        value_bytes = self.queries.shape[1] * _DTYPES[kind].itemsize
        row_bytes = stored.stride(0) * stored.element_size()
        aligned = stored.data_ptr() % _ALIGN == 0 and row_bytes % _ALIGN == 0
        return kind if aligned and value_bytes in _ROW_BYTES else None
