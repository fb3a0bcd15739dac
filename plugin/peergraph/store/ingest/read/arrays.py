"""Rows of arrays: tensors, arrays of NumPy, ``.npy`` files and arrays in ``.npz`` files."""

from __future__ import annotations

import copy
import math
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.store.ingest.read.row_source import Block, RowFile
from peergraph.store.ingest.values.arrow_arrays import Array, as_arrow

_MOST_OPEN = 64  # of one file, for its columns


class ArrayRows(RowFile):
    """The rows of an array: of a table, as one column without a name; or of edges, as columns
    ``"0"``, ``"1"`` and so on.

    Args:
        array: a tensor, an array of NumPy, or the name of one in a file, as of :class:`NpyFile`.
        are_edges: whether they are edges, ``[2, E]`` or ``[E, 2 or more columns]``.

    Raises:
        ValueError: another shape or layout.
    """

    def __init__(self, array: Any, are_edges: bool) -> None:
        is_file = not isinstance(array, (Tensor, np.ndarray))
        values = NpyFile(array) if is_file else array
        name = values.name if is_file else "the array"
        if isinstance(values, Tensor):
            _check_dense(values)
        if isinstance(values, np.ma.MaskedArray):
            raise ValueError("an array must have no mask: use NaN, or leave the rows out")
        shape = tuple(values.shape)
        if not shape:
            raise ValueError("an array must have rows, is a single value")
        if are_edges and (len(shape) != 2 or (2 not in shape and shape[1] < 2)):
            raise ValueError(f"{name}: edges must be [2, E] or [E, 2], are {list(shape)}")
        self._values = values.T if are_edges and shape[0] == 2 else values
        self._are_edges = are_edges
        rows = _in_numpy(values[:0])
        if rows.dtype.kind not in "biuf" or rows.itemsize > 8:
            raise ValueError(f"{name}: expected numbers, got {values.dtype}")
        if rows.itemsize != values.dtype.itemsize:
            self.dtype: Any = values.dtype
        if are_edges and self.dtype is not None:
            raise ValueError(f"{name}: ids must be whole numbers, are {values.dtype}")
        kind = as_arrow(rows.reshape(-1) if are_edges else rows).type
        columns = range(self._values.shape[1]) if are_edges else [""]
        names = [(str(column), kind) for column in columns]
        num_rows = self._values.shape[0]
        self._row_bytes = int(math.prod(shape) * values.dtype.itemsize // max(1, num_rows))
        file = (values.path, values.state) if isinstance(values, NpyFile) else ()
        super().__init__(name, names, num_rows, *file)

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns the bytes of a row of the array."""
        return self._row_bytes

    def blocks(self, columns: Sequence[str], batch_rows: int) -> Iterator[Block]:
        """Yields all rows, as :class:`RowFile` says."""
        for begin in range(0, self.expected_rows, batch_rows):
            values = _in_numpy(self._values[begin : begin + batch_rows])
            parts = zip(self.types, values.T if self._are_edges else [values], strict=True)
            yield {name: as_arrow(part) for name, part in parts if name in columns}, {}


def _in_numpy(rows: Any) -> Array:
    """Returns rows in NumPy, in the machine's byte order."""
    if isinstance(rows, Tensor):
        rows = rows.detach().cpu().resolve_conj().resolve_neg()
        try:
            rows = rows.numpy()
        except TypeError:  # NumPy does not know some dtypes, whose values float32 holds
            rows = rows.float().numpy()
    values: Array = np.asarray(rows, rows.dtype.newbyteorder("="))
    return values


class NpyFile:
    """An array in a ``.npy`` file, or ``archive.npz:name``, in C or in Fortran order, which is not
    mapped. Slices of its rows are read: compressed arrays quickest from front to back.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: it has no such array, it is no array of numbers, or it is shorter than its
            header says.
    """

    def __init__(self, name: str | PathLike[str]) -> None:
        self.name = fspath(name)
        """The file's name in messages."""
        archive, _, member = self.name.rpartition(":") if ".npz:" in self.name else (name, "", "")
        self.path = path = Path(archive)
        check_regular(path)
        self.state = path.stat()
        self._streams: dict[int, Any] = {}
        self._new_stream: Callable[[], Any] = partial(open, path, "rb", buffering=0)
        size, self._is_member = self.state.st_size, bool(member)
        if member:
            if member not in (names := npz_names(path)):
                raise ValueError(f"{path} has no array {member!r}, it has {names}")
            members = zipfile.ZipFile(path)
            self._new_stream = partial(members.open, f"{member}.npy")
            size = members.getinfo(f"{member}.npy").file_size
        self.shape, self._is_fortran, self.dtype = self._read_header(self._stream(0))
        self._begin = self._stream(0).tell()
        missing = self._begin + math.prod(self.shape) * self.dtype.itemsize - size
        if missing > 0:
            raise ValueError(
                f"{self.name} ends early: its header says {list(self.shape)} of {self.dtype}, "
                f"{missing} bytes are missing"
            )

    @property
    def T(self) -> NpyFile:
        """The transposed matrix, as of NumPy and torch."""
        other = copy.copy(self)
        other._streams, other.shape, other._is_fortran = {}, self.shape[::-1], not self._is_fortran
        return other

    def __getitem__(self, rows: slice) -> Array:
        """Returns a copy of some rows."""
        begin, end, _ = rows.indices(self.shape[0])
        size, width = self.dtype.itemsize, math.prod(self.shape[1:])
        values = np.empty((end - begin, *self.shape[1:]), self.dtype)
        if not self._is_fortran:
            self._read(begin * width * size, values, 0)
            return values
        # A stream for each column reads from front to back. A process may have 1024 open files.
        columns = values.reshape(width, end - begin)
        for number, column in enumerate(columns):
            stream = number if self._is_member else number % _MOST_OPEN
            self._read((number * self.shape[0] + begin) * size, column, stream)
        return np.transpose(columns.reshape(*self.shape[:0:-1], end - begin))

    def _read(self, offset: int, values: Array, stream: int) -> None:
        """Reads the elements that begin `offset` bytes behind the header."""
        buffer, file = values.reshape(-1).view(np.uint8).data, self._stream(stream)
        try:
            file.seek(self._begin + offset)
            while buffer and (count := file.readinto(buffer)):
                buffer = buffer[count:]
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise ValueError(f"{self.name} cannot be read: {error}") from error
        if buffer:
            raise ValueError(f"{self.name} ends early: {len(buffer)} bytes are missing")

    def _stream(self, number: int) -> Any:
        if number not in self._streams:
            try:
                self._streams[number] = self._new_stream()
            except (zipfile.BadZipFile, NotImplementedError) as error:
                raise ValueError(f"{self.name} cannot be read: {error}") from None
        return self._streams[number]

    def _read_header(self, file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        try:
            version = np.lib.format.read_magic(file)
            if version == (1, 0):
                shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
            else:
                shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(file)
        except Exception as error:  # what NumPy raises for damaged headers is not documented
            raise ValueError(f"{self.name} has no valid .npy header: {error}") from error
        if any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"{self.name}: the shape {shape} in its header is none")
        if dtype.kind not in "biuf" or dtype.itemsize > 8 or not shape:
            raise ValueError(f"{self.name} must be an array of numbers, is {dtype} {list(shape)}")
        return tuple(shape), is_fortran and len(shape) > 1, dtype


def npz_names(path: Path) -> list[str]:
    """Returns the names of the arrays in a ``.npz`` file. Raises ValueError for other files."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is no .npz file: {error}") from None


def is_array_path(value: object) -> bool:
    """Returns whether a name is that of a ``.npy`` file or of an array in a ``.npz`` file."""
    return isinstance(value, (str, PathLike)) and (
        str(fspath(value)).endswith(".npy") or ".npz:" in str(fspath(value))
    )


def check_regular(path: Path) -> None:
    """Raises FileNotFoundError if there is no such file, and ValueError if it is a folder, a pipe,
    a device or a socket.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        linked = path.is_symlink()
        what = f"{path} is a link to a file that does not exist" if linked else f"no file is {path}"
        raise FileNotFoundError(what) from None
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} must be a regular file")


def _check_dense(values: Tensor) -> None:
    kinds = {
        str(values.layout): values.layout != torch.strided,
        "nested": values.is_nested,
        "quantized": values.is_quantized,
        "of the device meta": values.is_meta,
    }
    for kind, is_so in kinds.items():
        if is_so:
            raise ValueError(f"a tensor must be dense, with values, is {kind}")
