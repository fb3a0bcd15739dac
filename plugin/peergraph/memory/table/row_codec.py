"""Narrow storage of rows: how many bytes a stored row has, and where its values and scales are."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

import torch

import peergraph._C as _C
from peergraph.memory.device.launching import DTYPES, launch_on
from peergraph.memory.table.table_view import dense_view

STORED_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
}
"""The dtypes of stored values, by name."""

_FULL = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float64)}
_GROUPED = re.compile(r"int8:([1-9][0-9]{0,8})")
_GROUP_UNIT = 4
_SCALE_BYTES = 4


def storage_name(given: str | torch.dtype) -> str:
    """The name of a storage, as manifests and reports write it.

    Args:
        given: a name of :data:`STORED_DTYPES`, ``"int8:N"`` (a scale for each N columns),
            ``"float32"``, ``"float64"``, or such a dtype.

    Raises:
        ValueError: it is none of these, or N is no multiple of 4.
    """
    for name, dtype in {**STORED_DTYPES, **_FULL}.items():
        if given in (name, dtype, str(dtype).removeprefix("torch.")):
            return name
    found = _GROUPED.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        names = ", ".join([*STORED_DTYPES, "int8:N"])
        raise ValueError(f"storage must be one of {names}, or the dtype of the data, got {given!r}")
    if int(found[1]) % _GROUP_UNIT:
        raise ValueError(f"storage: N of int8:N must be a multiple of {_GROUP_UNIT}, got {given!r}")
    return found[0]


def codec_of(
    storage: str | None, dtype: torch.dtype, row_shape: tuple[int, ...]
) -> RowCodec | None:
    """The codec of a table; None where its rows are stored as they are.

    Args:
        storage: by :func:`storage_name`; None: as the data is.
        dtype: of the users' rows.
        row_shape: of one of them.

    Raises:
        ValueError: the dtype has no narrow storage, or the storage is a full dtype that is not the
            dtype of the data.
    """
    if storage is None or storage == str(dtype).removeprefix("torch."):
        return None
    if dtype not in DTYPES:
        names = ", ".join(str(known).removeprefix("torch.") for known in DTYPES)
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
    """How rows of a table are stored in fewer bytes than its users see.

    A stored row is its values one after the other; then, for int8, a float32 scale for each group
    of columns, at the next multiple of 4 bytes; then padding, to a multiple of 16 bytes where that
    is at most an eighth more, else of 8 or 4, or none. A value of int8 is ``q * scale`` in float32,
    with ``scale = max(abs(group)) / 127`` and ``q = round(value / scale)``, ties to even.

    Args:
        dtype: of the users' rows.
        row_shape: of one of them.
        stored: a name of :data:`STORED_DTYPES`.
        group_columns: for int8, the columns with a common scale; else 0.
    """

    dtype: torch.dtype
    row_shape: tuple[int, ...]
    stored: str
    group_columns: int = 0

    @property
    def storage(self) -> str:
        """The name of the storage, which :func:`codec_of` takes."""
        has_groups = self.num_groups > 1
        return f"{self.stored}:{self.group_columns}" if has_groups else self.stored

    @property
    def stored_dtype(self) -> torch.dtype:
        """Of the stored values."""
        return STORED_DTYPES[self.stored]

    @property
    def columns(self) -> int:
        """Values of a row."""
        return math.prod(self.row_shape)

    @property
    def value_bytes(self) -> int:
        """Bytes of the values of a row."""
        return self.columns * self.stored_dtype.itemsize

    @property
    def num_groups(self) -> int:
        """Scales of a row."""
        return -(-self.columns // self.group_columns) if self.group_columns else 0

    @property
    def scales(self) -> slice:
        """The bytes of a row that are its scales."""
        begin = -(-self.value_bytes // _SCALE_BYTES) * _SCALE_BYTES if self.num_groups else 0
        return slice(begin, begin + _SCALE_BYTES * self.num_groups)

    @property
    def row_bytes(self) -> int:
        """Bytes of a stored row."""
        used: int = max(self.value_bytes, self.scales.stop)
        for unit in (16, 8, 4):
            padded = -(-used // unit) * unit
            if 8 * (padded - used) <= used:
                return padded
        return used

    @property
    def user_bytes(self) -> int:
        """Bytes of a row as users see it."""
        return self.columns * self.dtype.itemsize

    @cached_property
    def native(self) -> _C.RowCodec:
        """The codec as the compiled module takes it."""
        return _C.RowCodec(
            stored=_C.StoredType.__members__[self.stored],
            dtype=DTYPES[self.dtype],
            columns=self.columns,
            group_columns=self.group_columns,
            scales_begin=self.scales.start,
        )

    def decode(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The users' rows ``[n, *row_shape]`` of stored rows.

        Args:
            rows: uint8 [n, row_bytes], contiguous.
            out: contiguous, on the device of `rows`, with room for the result; default: new.
        """
        if out is None:
            shape = (len(rows), *self.row_shape)
            out = torch.empty(shape, dtype=self.dtype, device=rows.device)
        if rows.numel():
            view = dense_view(rows, len(rows), self.row_bytes)
            every = _C.IdList(first=0, count=len(rows))
            _C.decode_gather(view, self.native, every, out, launch_on(rows.device))
        return out

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "native"}
