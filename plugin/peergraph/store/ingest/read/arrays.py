"""Rows of arrays: tensors, arrays of NumPy, ``.npy`` files and arrays in ``.npz`` files."""

from __future__ import annotations

import copy
import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.store.ingest.read.file_list import check_regular
from peergraph.store.ingest.read.row_source import Batch, RowFile
from peergraph.store.ingest.values.arrow_arrays import Array
from peergraph.store.ingest.values.problems import Problems


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
        values = NpyFile.of(array) if is_file else array
        name = values.name if is_file else "the array of edges" if are_edges else "the array"
        if isinstance(values, Tensor) and values.layout != torch.strided:
            raise ValueError(f"a tensor must be dense, is {values.layout}")
        shape = tuple(values.shape)
        if not shape:
            raise ValueError("an array must have rows, is a single value")
        if are_edges and (len(shape) != 2 or (2 not in shape and shape[1] < 2)):
            raise ValueError(f"{name}: edges must be [2, E] or [E, 2], are {list(shape)}")
        self._values = values.T if are_edges and shape[0] == 2 else values
        self._are_edges, self._size = are_edges, math.prod(shape) * values.dtype.itemsize
        # Where NumPy does not know the dtype, torch's is the one of the column.
        dtype = _in_numpy(values[:0]).dtype
        if dtype.itemsize != values.dtype.itemsize:
            dtype = values.dtype
        columns = range(self._values.shape[1]) if are_edges else [""]
        names = [(str(column), dtype) for column in columns]
        super().__init__(name, names, self._values.shape[0], self._size)

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns the bytes of a row of the array."""
        return int(self._size // max(1, self.expected_rows))

    def batches(self, columns: Sequence[str], batch_rows: int, first: int) -> Iterator[Batch]:
        """Yields all rows, as :class:`RowFile` says."""
        for begin in range(0, self.expected_rows, batch_rows):
            end = min(begin + batch_rows, self.expected_rows)
            values = _in_numpy(self._values[begin:end])
            parts = values.T if self._are_edges else [values]
            arrays = {
                name: np.ascontiguousarray(part)
                for name, part in zip(self.types, parts, strict=True)
                if name in columns
            }
            numbers, num_bytes = np.arange(first + begin, first + end), end - begin
            num_bytes *= self.row_bytes(columns)
            yield Batch(numbers, arrays, num_bytes, Problems(end - begin))


def _in_numpy(rows: Any) -> Array:
    """Returns rows in NumPy, in the machine's byte order."""
    if isinstance(rows, Tensor):
        rows = rows.detach().cpu()
        try:
            rows = rows.numpy()
        except TypeError:  # NumPy does not know some dtypes, whose values float32 holds
            rows = rows.float().numpy()
    values: Array = np.asarray(rows, rows.dtype.newbyteorder("="))
    return values


class NpyFile:
    """An array in a ``.npy`` file, or a member of a ``.npz`` file, in C or in Fortran order, which
    is not mapped. Slices of its rows are read: compressed arrays quickest from front to back.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: it has no such array, it is no array of numbers, or it is shorter than its
            header says.
    """

    def __init__(self, path: Path, member: str | None = None) -> None:
        check_regular(path)
        self._path, self._member = path, member
        self.name = str(path) if member is None else f"{path}:{member}"
        """The file's name in messages."""
        self._streams: dict[int, Any] = {}
        with self._open() as file:
            self.shape, self._is_fortran, self.dtype = self._read_header(file)
            self._begin = file.tell()
        missing = self._begin + math.prod(self.shape) * self.dtype.itemsize - self._file_size()
        if missing > 0:
            raise ValueError(
                f"{self.name} ends early: its header says {list(self.shape)} of {self.dtype}, "
                f"{missing} bytes are missing"
            )

    @classmethod
    def of(cls, name: str | PathLike[str]) -> NpyFile:
        """Opens a ``.npy`` file, or ``archive.npz:name``."""
        text = fspath(name)
        archive, _, member = text.rpartition(":") if ".npz:" in text else (text, "", None)
        return cls(Path(archive), member)

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
        # A stream for each column reads from front to back.
        columns = values.reshape(width, end - begin)
        for number, column in enumerate(columns):
            self._read((number * self.shape[0] + begin) * size, column, number)
        return np.transpose(columns.reshape(*self.shape[:0:-1], end - begin))

    def _read(self, offset: int, values: Array, stream: int) -> None:
        """Reads the elements that begin `offset` bytes behind the header."""
        buffer = values.reshape(-1).view(np.uint8).data
        if stream not in self._streams:
            self._streams[stream] = self._open()
        file = self._streams[stream]
        try:
            file.seek(self._begin + offset)
            while buffer and (count := file.readinto(buffer)):
                buffer = buffer[count:]
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise ValueError(f"{self.name} cannot be read: {error}") from error
        if buffer:
            raise ValueError(f"{self.name} ends early: {len(buffer)} bytes are missing")

    def _file_size(self) -> int:
        if self._member is None:
            return self._path.stat().st_size
        with zipfile.ZipFile(self._path) as archive:
            return archive.getinfo(f"{self._member}.npy").file_size

    def _open(self) -> Any:
        if self._member is None:
            return open(self._path, "rb", buffering=0)
        names = npz_names(self._path)
        if self._member not in names:
            raise ValueError(f"{self._path} has no array {self._member!r}, it has {names}")
        try:
            return zipfile.ZipFile(self._path).open(f"{self._member}.npy")
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise ValueError(f"{self._path} is no .npz file: {error}") from None

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
