"""Reads rows of ``.npy`` files and of arrays in ``.npz`` files, without mapping them."""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip file's member: lengths of name and extra field


class NpyFile:
    """An array in a file, in C or in Fortran order (:attr:`is_fortran`).

    Args:
        path: a ``.npy`` file, or a ``.npz`` file.
        member: the array in a ``.npz`` file.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: it has no such array, it is no array of numbers, or it is shorter than its
            header says.
    """

    def __init__(self, path: Path, member: str | None = None) -> None:
        self.path, self.member = path, member
        self._offset = 0
        self._is_compressed = False
        self._size = path.stat().st_size
        if member is not None:
            self._find_member()
        with self._open() as file:
            self.shape, self.is_fortran, self.dtype, header = self._read_header(file)
        self._header_bytes = header
        expected = header + math.prod(self.shape) * self.dtype.itemsize
        if expected > self._size:
            raise ValueError(
                f"{self.name} ends early: its header says {list(self.shape)} of {self.dtype}, "
                f"{expected - self._size} bytes are missing"
            )
        self._stream: Any = None
        self._at = 0

    @property
    def name(self) -> str:
        """The file's name in messages."""
        return str(self.path) if self.member is None else f"{self.path}[{self.member}]"

    @property
    def row_bytes(self) -> int:
        """The bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Returns a copy of rows begin..end, in the machine's byte order. Compressed arrays are
        read quickest from front to back.
        """
        if not self.is_fortran:
            return self.read_elements(begin * self.row_bytes, (end - begin, *self.shape[1:]))
        size, rows = self.dtype.itemsize, self.shape[0]
        columns = [
            self.read_elements((number * rows + begin) * size, (end - begin,))
            for number in range(math.prod(self.shape[1:]))
        ]
        values = np.array(columns, self.dtype.newbyteorder("="))
        return np.ascontiguousarray(values.reshape(*self.shape[:0:-1], end - begin).T)

    def read_elements(self, offset: int, shape: tuple[int, ...]) -> NDArray[Any]:
        """Returns a copy of the elements that begin `offset` bytes after the header."""
        values = np.empty(shape, self.dtype)
        buffer = values.reshape(-1).view(np.uint8).data
        start = self._offset + self._header_bytes + offset
        if self._stream is None:
            self._stream = self._open()
            self._at = self._stream.tell()
        if self._at != start:
            self._stream.seek(start)
        done = 0
        while done < len(buffer):
            try:
                count = self._stream.readinto(buffer[done:])
            except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                raise ValueError(f"{self.name} cannot be read: {error}") from error
            if not count:
                raise ValueError(f"{self.name} ends early: {len(buffer) - done} bytes are missing")
            done += count
        self._at = start + done
        return values if self.dtype.isnative else values.astype(self.dtype.newbyteorder("="))

    def _open(self) -> Any:
        if self._is_compressed:
            return zipfile.ZipFile(self.path).open(f"{self.member}.npy")
        file = open(self.path, "rb", buffering=0)  # noqa: SIM115
        file.seek(self._offset)
        return file

    def _find_member(self) -> None:
        try:
            with zipfile.ZipFile(self.path) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist()]
                if self.member not in names:
                    raise ValueError(f"{self.path} has no array {self.member!r}, it has {names}")
                found = archive.getinfo(f"{self.member}.npy")
                self._size = found.file_size
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise ValueError(f"{self.path} is no .npz file: {error}") from None
        self._is_compressed = found.compress_type != zipfile.ZIP_STORED
        if not self._is_compressed:
            with open(self.path, "rb") as file:
                file.seek(found.header_offset)
                header = file.read(_LOCAL_HEADER.size)
                if len(header) < _LOCAL_HEADER.size:
                    raise ValueError(f"{self.path} is no .npz file: {self.member!r} is missing")
                lengths = _LOCAL_HEADER.unpack(header)
            self._offset = found.header_offset + _LOCAL_HEADER.size + sum(lengths)

    def _read_header(self, file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
        stream = io.BytesIO(file.read(1 << 16))
        try:
            version = np.lib.format.read_magic(stream)
            if version == (1, 0):
                shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
            else:
                shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        except Exception as error:  # what NumPy raises for damaged headers is not documented
            raise ValueError(f"{self.name} has no valid .npy header: {error}") from error
        if any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"{self.name}: the shape {shape} in its header is none")
        if dtype.kind not in "biuf" or dtype.itemsize > 8 or not shape:
            raise ValueError(f"{self.name} must be an array of numbers, is {dtype} {list(shape)}")
        return tuple(shape), is_fortran and len(shape) > 1, dtype, stream.tell()


def npz_names(path: Path) -> list[str]:
    """Returns the names of the arrays in a ``.npz`` file."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]
