"""Encodes users' rows for narrow storage, checks that values fit, and measures the errors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.memory.table.row_codec import RowCodec
from peergraph.memory.table.storage_report import StorageErrors

# The largest float32 value that each type rounds to a finite value. The encoder rejects larger
# values itself, because GPUs and CPUs convert them differently.
_LARGEST_CONVERTIBLE = {
    "float16": 65519.99609375,
    "bfloat16": float.fromhex("0x1.fefffep127"),
    "float8_e4m3": 464.0,
    "float8_e5m2": 61439.99609375,
}
# The largest finite value of each type, for error messages.
_LARGEST_STORED = {"float16": 65504, "bfloat16": 3.39e38, "float8_e4m3": 448, "float8_e5m2": 57344}
# Scales below this are subnormal and would be inaccurate: their groups are stored as zeros.
_LEAST_SCALE = torch.finfo(torch.float32).tiny
_INT8_MOST = 127
# The number of values that are encoded at once. On the CPU they stay in its caches.
_BLOCK_VALUES = {"cpu": 1 << 19, "cuda": 1 << 23}


class RowEncoder:
    """Encodes the rows of one table.

    Args:
        codec: the table's codec.
        name: the table's name, for errors.
    """

    def __init__(self, codec: RowCodec, name: str) -> None:
        self.codec = codec
        self.name = name
        self.errors = StorageErrors(codec.columns)
        """The errors of all rows that this object has encoded."""

    def encode(self, rows: Tensor, ids: Tensor | int) -> Tensor:
        """Encodes rows, and adds their errors to :attr:`errors`. Synchronises with a GPU.

        Args:
            rows: [n, *row shape] of the users' dtype, on any device.
            ids: [n] the users' ids of the rows; an int is the first of consecutive ids.

        Returns:
            The stored rows, uint8 [n, row_bytes], on the device of `rows`.

        Raises:
            ValueError: the storage cannot hold a value; the error names the first such value.
        """
        codec = self.codec
        shape = (len(rows), codec.row_bytes)
        encoded = torch.zeros(shape, dtype=torch.uint8, device=rows.device)
        values = rows.reshape(len(rows), codec.columns)
        most = _BLOCK_VALUES.get(rows.device.type, _BLOCK_VALUES["cpu"])
        step = max(1, most // max(1, codec.columns))
        for begin in range(0, len(rows), step):
            block = values[begin : begin + step]
            self._encode_block(block, encoded[begin : begin + step], begin, ids)
        return encoded

    def _encode_block(self, values: Tensor, out: Tensor, begin: int, ids: Tensor | int) -> None:
        codec = self.codec
        self._check(values, begin, ids)
        if codec.num_groups:
            scales, quantized = self._quantize(values)
            decoded = self._widen(scales, quantized).to(codec.dtype)
            stored = quantized.to(torch.int8)
            out[:, codec.scales] = _as_bytes(scales)
        else:
            stored = values.to(codec.stored_dtype)
            decoded = stored.to(codec.dtype)
        if codec.columns:
            out[:, : codec.value_bytes] = _as_bytes(stored)
        self.errors.add(values, decoded)

    def _quantize(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the scales [n, groups], and the int8 values [n, columns] as float32."""
        grouped = self._grouped(values.float())
        # CUDA divides by a Python number by multiplying with its reciprocal, which rounds
        # differently than the CPU's division. It divides by a tensor as the CPU does.
        most = torch.full((1,), float(_INT8_MOST), device=values.device)
        scales = grouped.abs().amax(2) / most
        scales = torch.where(scales < _LEAST_SCALE, 0, scales)
        divisors = torch.where(scales == 0, torch.inf, scales)
        quantized = (grouped / divisors.unsqueeze(2)).round().clamp(-_INT8_MOST, _INT8_MOST)
        return scales, quantized.flatten(1)[:, : self.codec.columns]

    def _widen(self, scales: Tensor, quantized: Tensor) -> Tensor:
        wide = self._grouped(quantized) * scales.unsqueeze(2)
        return wide.flatten(1)[:, : self.codec.columns]

    def _grouped(self, values: Tensor) -> Tensor:
        """Reshapes values to [n, groups, columns of a group]; zeros complete the last group."""
        groups, size = self.codec.num_groups, self.codec.group_columns
        missing = groups * size - values.shape[1]
        padded = F.pad(values, (0, missing)) if missing else values
        return padded.reshape(len(values), groups, size)

    def _check(self, values: Tensor, begin: int, ids: Tensor | int) -> None:
        stored = self.codec.stored
        wide = values.float()
        if stored == "int8":
            bad = ~torch.isfinite(wide)
        else:
            bad = wide.abs() > _LARGEST_CONVERTIBLE[stored]
            if stored != "float8_e4m3":
                bad &= ~torch.isinf(values)
        if not bool(bad.any()):
            return
        row, column = (int(i) for i in bad.nonzero()[0])
        number = ids + begin + row if isinstance(ids, int) else int(ids.flatten()[begin + row])
        value = float(values[row, column])
        limit = (
            "finite float32 values" if stored == "int8" else f"at most {_LARGEST_STORED[stored]}"
        )
        raise ValueError(
            f"{self.name}: row {number} has {value:g} in column {column}, which storage "
            f"{self.codec.storage!r} cannot hold ({limit})"
        )


def _as_bytes(values: Tensor) -> Tensor:
    """Returns the values as uint8 [n, bytes]. There must be at least one column."""
    return values.contiguous().view(torch.uint8)
