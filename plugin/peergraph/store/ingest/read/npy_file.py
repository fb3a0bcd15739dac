"""Reads rows of ``.npy`` files and of arrays in ``.npz`` files, without mapping them."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NpyFile:
    """An array in a file, in C or in Fortran order.

    Args:
        path: a ``.npy`` file, or a ``.npz`` file.
        member: the array in a ``.npz`` file.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: it has no such array, it is no array of numbers, or it is shorter than its
            header says.
    """

    def __init__(self, path: Path, member: str | None = None) -> None:
        self._path, self._member = path, member
        self.name = str(path) if member is None else f"{path}[{member}]"
        """The file's name in messages."""
        self._streams: dict[int, Any] = {}
        with self._open() as file:
            self.shape, self._is_fortran, self.dtype = self._read_header(file)
            self._begin = file.tell()
        missing = self._begin + math.prod(self.shape) * self.dtype.itemsize - self._size()
        if missing > 0:
            raise ValueError(
                f"{self.name} ends early: its header says {list(self.shape)} of {self.dtype}, "
                f"{missing} bytes are missing"
            )

    @property
    def row_bytes(self) -> int:
        """The bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def transposed(self) -> NpyFile:
        """Returns the transposed matrix."""
        other = NpyFile(self._path, self._member)
        other.shape, other._is_fortran = self.shape[::-1], not self._is_fortran
        return other

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Returns a copy of rows begin..end, in the machine's byte order. Compressed arrays are
        read quickest from front to back.
        """
        if not self._is_fortran:
            return self._read(begin * self.row_bytes, (end - begin, *self.shape[1:]))
        values = np.array(self.columns(begin, end), self.dtype.newbyteorder("="))
        return np.ascontiguousarray(values.reshape(*self.shape[:0:-1], end - begin).T)

    def columns(self, begin: int, end: int) -> list[NDArray[Any]]:
        """Returns copies of the columns of rows begin..end, each ``[end - begin]``; those of more
        dimensions in Fortran order.
        """
        if self._is_fortran:
            size, rows = self.dtype.itemsize, self.shape[0]
            return [
                self._read((number * rows + begin) * size, (end - begin,), number)
                for number in range(math.prod(self.shape[1:]))
            ]
        return [np.ascontiguousarray(column) for column in self.read(begin, end).T]

    def _read(self, offset: int, shape: tuple[int, ...], stream: int = 0) -> NDArray[Any]:
        """Returns the elements that begin `offset` bytes behind the header.

        Args:
            stream: the number of the descriptor: each one reads from front to back.
        """
        values = np.empty(shape, self.dtype)
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
        return values.astype(self.dtype.newbyteorder("="), copy=False)

    def _size(self) -> int:
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
