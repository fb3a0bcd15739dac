"""Measures how much narrow storage changes the values of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.memory.table.row_codec import RowCodec


@dataclass(frozen=True)
class StorageReport:
    """Reports the range of a table's values, and the errors of its narrow storage.

    An error is the absolute difference between a value and its stored value, divided by the largest
    absolute value of the same row, or of the same column. NaN and infinite values do not count.

    Args:
        table: the name of the table.
        storage: the name of the storage.
        dtype: the dtype that users see.
        stored_bytes: the bytes of a stored row.
        user_bytes: the bytes of a row that users see.
        rows: the number of rows that were encoded.
        minimum, maximum: the smallest and the largest finite value; 0 if no value is finite.
        not_finite: the number of NaN and infinite values. They are stored as NaN or infinite.
        underflows: the number of non-zero values that are stored as 0.
        worst_error, mean_error: the largest and the mean error relative to the row.
        worst_column_error, mean_column_error: the largest and the mean error relative to the
            column.
        worst_column: the index of the column that has `worst_column_error`.
    """

    table: str
    storage: str
    dtype: str
    stored_bytes: int
    user_bytes: int
    rows: int
    minimum: float
    maximum: float
    not_finite: int
    underflows: int
    worst_error: float
    mean_error: float
    worst_column_error: float
    mean_column_error: float
    worst_column: int

    def __str__(self) -> str:
        text = (
            f"{self.table}: {self.rows} rows of {self.dtype} stored as {self.storage}, "
            f"{self.stored_bytes} bytes a row in place of {self.user_bytes}; values from "
            f"{self.minimum:.4g} to {self.maximum:.4g}; error relative to the largest value of the "
            f"row: worst {self.worst_error:.2%}, mean {self.mean_error:.3%}; of the column: worst "
            f"{self.worst_column_error:.2%} (column {self.worst_column}), mean "
            f"{self.mean_column_error:.3%}"
        )
        if self.underflows:
            text += f"; {self.underflows} values became 0"
        return text + (f"; {self.not_finite} are not finite" if self.not_finite else "")


class StorageErrors:
    """Accumulates the errors of a table's storage, block by block and rank by rank."""

    def __init__(self, columns: int) -> None:
        self.rows = 0
        self.minimum, self.maximum = float("inf"), -float("inf")
        self.finite = self.not_finite = self.underflows = 0
        self.worst = self.sum = 0.0
        self.column_largest = torch.zeros(columns, dtype=torch.float64, device="cpu")
        self.column_worst = torch.zeros_like(self.column_largest)
        self.column_sum = torch.zeros_like(self.column_largest)

    def add(self, values: Tensor, stored: Tensor) -> None:
        """Adds the errors of a block of rows. Synchronises with a GPU.

        Args:
            values: [n, columns] the user's values.
            stored: [n, columns] the same values after encoding and decoding.
        """
        self.rows += len(values)
        if values.numel() == 0:
            return
        wide = values if values.dtype == torch.float64 else values.float()
        finite = torch.isfinite(wide)
        largest = torch.where(finite, wide, 0).abs()
        error = torch.where(finite, (stored.to(wide.dtype) - wide).abs(), 0)
        tiny = torch.finfo(wide.dtype).tiny
        relative = error / largest.amax(1, keepdim=True).clamp_min(tiny)
        count = int(finite.sum())
        self.finite += count
        self.not_finite += wide.numel() - count
        if count:
            self.minimum = min(self.minimum, float(torch.where(finite, wide, torch.inf).min()))
            self.maximum = max(self.maximum, float(torch.where(finite, wide, -torch.inf).max()))
        self.underflows += int(((stored == 0) & (wide != 0)).sum())
        self.worst = max(self.worst, float(relative.max()))
        self.sum += float(relative.sum(dtype=torch.float64))
        self._add_columns(largest.amax(0), error.amax(0), error.sum(0, dtype=torch.float64))

    def merge(self, other: StorageErrors) -> None:
        """Adds the errors that another rank has accumulated."""
        self.rows += other.rows
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)
        self.finite += other.finite
        self.not_finite += other.not_finite
        self.underflows += other.underflows
        self.worst, self.sum = max(self.worst, other.worst), self.sum + other.sum
        self._add_columns(other.column_largest, other.column_worst, other.column_sum)

    def _add_columns(self, largest: Tensor, worst: Tensor, total: Tensor) -> None:
        for mine, new in ((self.column_largest, largest), (self.column_worst, worst)):
            torch.maximum(mine, new.to(mine), out=mine)
        self.column_sum += total.to(self.column_sum)

    def report(self, table: str, codec: RowCodec) -> StorageReport:
        """Returns the report. `table` is the name of the table."""
        scale = self.column_largest.clamp_min(torch.finfo(torch.float64).tiny)
        by_column, has_columns = self.column_worst / scale, codec.columns > 0
        mean = float((self.column_sum / scale).sum()) / max(1, self.finite)
        worst = int(by_column.argmax()) if has_columns else 0
        return StorageReport(
            table,
            codec.storage,
            str(codec.dtype).removeprefix("torch."),
            codec.row_bytes,
            codec.user_bytes,
            self.rows,
            self.minimum if self.finite else 0.0,
            self.maximum if self.finite else 0.0,
            self.not_finite,
            self.underflows,
            self.worst,
            self.sum / max(1, self.finite),
            float(by_column[worst]) if has_columns else 0.0,
            mean,
            worst,
        )


def merged_report(table: str, codec: RowCodec, errors: Sequence[StorageErrors]) -> StorageReport:
    """Returns the report of the errors that several ranks have accumulated."""
    total = StorageErrors(codec.columns)
    for part in errors:
        total.merge(part)
    return total.report(table, codec)
