"""The exchanges that each rank of a host has joined, in memory that all of them read.

An exchange over torch.distributed, or by copies between GPUs, carries no name: a rank in another
one gives it the wrong rows, or waits for ever. So each rank writes the name of an exchange before
it joins, and then compares what the others have written under the same number. Of two ranks in
different exchanges, at least the second to write sees it, before it sends anything.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import zlib

from peergraph.memory.group.calls import Call

_COUNT = struct.Struct("<Q")
# An entry: its number, whether the rank sends its name with the values too, and the name.
_ENTRY = struct.Struct("<QB119s")
_NAME_BYTES = 119
# A rank that is further ahead than this is not compared any more; GPUs queue fewer exchanges.
_ENTRIES = 4096
_BYTES = (_ENTRIES + 1) * _ENTRY.size


class CallLog:
    """The log of this rank, which others read, and those of the other ranks.

    A rank that is made gets a file descriptor of each other rank's log, see :meth:`add`.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("peergraph-calls", os.MFD_CLOEXEC)
        """The file of this rank's log, to be sent to the other ranks."""
        os.ftruncate(self.fd, _BYTES)
        self._own = mmap.mmap(self.fd, _BYTES)
        self._others: dict[int, mmap.mmap] = {}
        self._count = 0
        # Its acquisition also keeps the processor from reading the others' logs before this rank's
        # entry is written.
        self._lock = threading.Lock()

    def add(self, rank: int, fd: int) -> None:
        """Reads the log of another rank from now on; closes the descriptor."""
        try:
            if os.fstat(fd).st_size == _BYTES:
                self._others[rank] = mmap.mmap(fd, _BYTES, prot=mmap.PROT_READ)
        finally:
            os.close(fd)

    def close_file(self) -> None:
        """Closes the file of this rank's log, once all ranks have it. The log stays."""
        os.close(self.fd)

    def enter(self, call: Call, *, sends_name: bool) -> dict[int, str]:
        """Writes that this rank joins an exchange.

        Args:
            call: the exchange.
            sends_name: whether ranks send its name with their values, so that they find differences
                themselves.

        Returns:
            The names that other ranks have written under the same number, if they differ and the
            ranks would not find it themselves.
        """
        name = _name(call)
        with self._lock:
            self._count += 1
            number = self._count
            self._write(number, sends_name, name)
            _COUNT.pack_into(self._own, 0, number)
        with self._lock:
            texts = {}
            for rank, log in self._others.items():
                theirs, sends, text = _ENTRY.unpack_from(log, _place(number))
                is_same = theirs != number or text == name
                if not is_same and not (sends and sends_name):
                    texts[rank] = _text(text)
            return texts

    @property
    def count(self) -> int:
        """The number of exchanges that this rank has joined."""
        return self._count

    def count_of(self, rank: int) -> int:
        """Returns how many exchanges another rank has joined; this rank's for unknown ranks."""
        log = self._others.get(rank)
        return self._count if log is None else int(_COUNT.unpack_from(log)[0])

    def announced(self, number: int) -> str | None:
        """Returns the name of an exchange that this rank has joined; None if ranks send its name
        with their values, or it was long ago.
        """
        written, sends_name, text = _ENTRY.unpack_from(self._own, _place(number))
        return _text(text) if written == number and not sends_name else None

    def _write(self, number: int, sends_name: bool, name: bytes) -> None:
        place = _place(number)
        # The number last: a rank that reads it reads the name as well.
        _ENTRY.pack_into(self._own, place, 0, sends_name, name)
        _COUNT.pack_into(self._own, place, number)


def _place(number: int) -> int:
    return (1 + number % _ENTRIES) * _ENTRY.size


def _name(call: Call) -> bytes:
    """Returns a call's name in as many bytes as an entry has; other names differ in the last."""
    name = call.in_full().encode()
    if len(name) <= _NAME_BYTES:
        return name.ljust(_NAME_BYTES, b"\0")
    check = f"...{zlib.crc32(name):08x}".encode()
    return name[: _NAME_BYTES - len(check)] + check


def _text(name: bytes) -> str:
    return name.rstrip(b"\0").decode(errors="replace")
