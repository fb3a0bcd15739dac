"""The format of rows with narrow storage: a stored row's size, values and scales, and decoding."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

import torch

import peergraph._C as _C
from peergraph.memory.device.launching import DTYPES, launch_on
from peergraph.memory.table.id_list import id_list
from peergraph.memory.table.table_view import dense_view

STORED_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
}
"""Maps the name of each narrow storage to the dtype of its stored values."""

_FULL = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float64)}
_GROUPED = re.compile(r"int8:([1-9][0-9]{0,8})")
_GROUP_UNIT = 4
_SCALE_BYTES = 4


def storage_name(storage: str | torch.dtype) -> str:
    """Returns the name that manifests and reports use for a storage.

    Args:
        storage: a name in :data:`STORED_DTYPES`, ``"int8:N"`` (N adjacent columns share a scale),
            ``"float32"``, ``"float64"``, or the torch dtype of one of these.

    Raises:
        ValueError: `storage` is none of these, or N is not a multiple of 4.
    """
    for name, dtype in {**STORED_DTYPES, **_FULL}.items():
        if storage in (name, dtype, str(dtype).removeprefix("torch.")):
            return name
    grouped = _GROUPED.fullmatch(storage) if isinstance(storage, str) else None
    if grouped is None:
        names = ", ".join([*STORED_DTYPES, "int8:N"])
        raise ValueError(
            f"storage must be one of {names}, or the dtype of the data, got {storage!r}"
        )
    if int(grouped[1]) % _GROUP_UNIT:
        raise ValueError(
            f"storage: N of int8:N must be a multiple of {_GROUP_UNIT}, got {storage!r}"
        )
    return grouped[0]


def codec_of(
    storage: str | None, dtype: torch.dtype, row_shape: tuple[int, ...]
) -> RowCodec | None:
    """Returns the codec of a table, or None if its rows are stored without a change.

    Args:
        storage: a name that :func:`storage_name` returned; None stores rows without a change.
        dtype: the dtype that users see.
        row_shape: the shape of a row that users see.

    Raises:
        ValueError: tables of this dtype have no narrow storage, or the storage is float32 or
            float64 and the table has another dtype.
    """
    if storage is None or storage == str(dtype).removeprefix("torch."):
        return None
    if dtype not in DTYPES:
        names = ", ".join(str(dtype_of_codec).removeprefix("torch.") for dtype_of_codec in DTYPES)
        raise ValueError(f"storage {storage!r} is for tables of {names}, this one is {dtype}")
    if storage in _FULL:
        raise ValueError(f"storage {storage!r} is for tables of that dtype, this one is {dtype}")
    name, _, group = storage.partition(":")
    columns = math.prod(row_shape)
    whole = name == "int8" and (not group or int(group) >= columns)
    group_columns = columns if whole else int(group or 0)
    return RowCodec(dtype, row_shape, name, group_columns)


@dataclass(frozen=True)
class RowCodec:
    """Defines how the rows of a table are stored in fewer bytes than users see.

    A stored row begins with its values. For int8, a float32 scale for each group of columns
    follows, at the next multiple of 4 bytes. Padding completes the row to a multiple of 16 bytes if
    this adds at most an eighth, otherwise to a multiple of 8 or 4; if each of them adds more, there
    is no padding. int8 stores a value as ``q``, with ``scale = max(abs(group)) / 127`` and
    ``q = round(value / scale)``, ties to even; users read ``q * scale``, computed in float32.

    Args:
        dtype: the dtype that users see.
        row_shape: the shape of a row that users see.
        stored: a name in :data:`STORED_DTYPES`.
        group_columns: for int8, the number of adjacent columns that share a scale; otherwise 0.
    """

    dtype: torch.dtype
    row_shape: tuple[int, ...]
    stored: str
    group_columns: int = 0

    @property
    def storage(self) -> str:
        """The name of the storage, as :func:`codec_of` takes it."""
        has_groups = self.num_groups > 1
        return f"{self.stored}:{self.group_columns}" if has_groups else self.stored

    @property
    def stored_dtype(self) -> torch.dtype:
        """The dtype of the stored values."""
        return STORED_DTYPES[self.stored]

    @property
    def columns(self) -> int:
        """The number of values in a row."""
        return math.prod(self.row_shape)

    @property
    def value_bytes(self) -> int:
        """The bytes of a stored row's values, without scales and padding."""
        return self.columns * self.stored_dtype.itemsize

    @property
    def num_groups(self) -> int:
        """The number of scales in a row."""
        return -(-self.columns // self.group_columns) if self.group_columns else 0

    @property
    def scales(self) -> slice:
        """The range of bytes in a stored row that holds its scales."""
        begin = -(-self.value_bytes // _SCALE_BYTES) * _SCALE_BYTES if self.num_groups else 0
        return slice(begin, begin + self.scale_bytes)

    @property
    def scale_bytes(self) -> int:
        """The bytes of a row's scales."""
        return _SCALE_BYTES * self.num_groups

    @property
    def row_bytes(self) -> int:
        """The bytes of a stored row, with scales and padding."""
        used: int = max(self.value_bytes, self.scales.stop)
        for unit in (16, 8, 4):
            padded = -(-used // unit) * unit
            if 8 * (padded - used) <= used:
                return padded
        return used

    @property
    def user_bytes(self) -> int:
        """The bytes of a row that users see."""
        return self.columns * self.dtype.itemsize

    @cached_property
    def native(self) -> _C.RowCodec:
        """This codec as an argument of the compiled module."""
        return _C.RowCodec(
            stored=_C.StoredType.__members__[self.stored],
            dtype=DTYPES[self.dtype],
            columns=self.columns,
            group_columns=self.group_columns,
            scales_begin=self.scales.start,
        )

    def decode(
        self,
        rows: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        ids: torch.Tensor | slice | None = None,
        scales: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Decodes stored rows. Returns ``[n, *row_shape]`` in the users' dtype.

        Args:
            rows: the stored rows, uint8 [rows, row_bytes], contiguous.
            out: a contiguous tensor for the result, on the device of `rows`, of the result's dtype
                and number of elements; None: a new tensor.
            ids: the rows to decode: [n] int32 or int64, in range, or a range with both bounds.
                None: all.
            scales: float32 [rows, num_groups], contiguous, where they are apart: a stored row then
                has its values only.

        Asynchronous on a GPU.
        """
        if isinstance(ids, torch.Tensor):
            count, chosen = ids.shape[0], id_list(ids)
        else:
            first, last = (0, len(rows)) if ids is None else (ids.start, ids.stop)
            count = last - first
            chosen = _C.IdList(first=first, count=count)
        if out is None:
            out = torch.empty((count, *self.row_shape), dtype=self.dtype, device=rows.device)
        if count and rows.numel():
            apart, row_bytes = None, self.row_bytes
            if scales is not None:
                apart, row_bytes = dense_view(scales, len(rows), self.scale_bytes), self.value_bytes
            view = dense_view(rows, len(rows), row_bytes)
            _C.decode_gather(view, self.native, chosen, out, launch_on(rows.device), apart)
        return out

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "native"}
