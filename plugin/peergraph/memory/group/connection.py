"""A stream of messages between this rank and another one of the host, over a Unix socket."""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple

from peergraph.errors import CollectiveMismatchError, PeerLostError
from peergraph.memory.group.process import ProcessId

# Kind, bytes of the call, bytes of the value.
_HEADER = struct.Struct("!BIQ")


class Kind(IntEnum):
    """The kind of a message."""

    VALUE = 1
    """A rank's part in an exchange."""
    LOST = 2
    """The sender has given up the group; the value is the reason."""
    FAREWELL = 3
    """The sender leaves the group; the value is the error that ended it, empty for success."""
    MISMATCH = 4
    """The sender has given up the group because ranks called different collectives; the value names
    them."""


class Part(NamedTuple):
    """A rank's part in an exchange: the collective that it is in, encoded, and its value."""

    call: bytes
    value: memoryview


class Connection:
    """The connection to one other rank: received parts, unsent messages, and whether it has ended.

    No method waits. The socket is authenticated: nobody but the rank sends over it.
    """

    def __init__(self, rank: int, connected: socket.socket, pid: int) -> None:
        connected.setblocking(False)
        self.rank = rank
        self.socket = connected
        self.pid = pid
        self.process = ProcessId.of(pid)
        self.pidfd = _open_pidfd(pid)
        """Readable once the process has ended; None if the system has no pidfd."""
        self.ended = False
        """Whether the stream or the process has ended: no more messages will arrive."""
        self.farewell: str | None = None
        """The value of the rank's farewell; None without a farewell."""
        self.lost: PeerLostError | None = None
        """The error for which the rank has given up the group; None if it has not."""
        self._parts: deque[Part] = deque()
        self._outgoing: deque[memoryview] = deque()
        self._header = bytearray()
        self._body: memoryview | None = None
        self._filled = 0
        self._blocked = False
        # Set while a send or receive is in progress that must not be interrupted.
        self._sending = self._receiving = False
        self._garbled = False

    @property
    def is_sending(self) -> bool:
        """Whether messages are still to be sent and the rank has not ended."""
        return bool(self._outgoing) and not self.ended

    def send(self, kind: Kind, value: bytes, call: bytes = b"") -> None:
        """Sends as much as the system accepts now; :meth:`flush` sends the rest."""
        self._outgoing.append(memoryview(_HEADER.pack(kind, len(call), len(value)) + call))
        if value:
            self._outgoing.append(memoryview(value))
        self.flush()

    def flush(self) -> None:
        """Sends as much as the system accepts now."""
        while self.is_sending:
            if self._sending:
                # A signal's exception has interrupted a send: the number of sent bytes is unknown.
                self._outgoing.clear()
                with suppress(OSError):
                    self.socket.shutdown(socket.SHUT_WR)
                return
            self._sending = True
            self._send_some()
            self._sending = False
            if self._blocked:
                return

    def end(self) -> None:
        """Ends this rank's side of the stream, so that the other rank's watcher looks at it."""
        if not self.is_sending:
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)

    def receive(self) -> None:
        """Receives what has arrived."""
        while not self.ended:
            # A signal's exception has interrupted a receive: the next message's begin is unknown.
            self._garbled |= self._receiving
            self._receiving = True
            try:
                count = self._skip_some() if self._garbled else self._receive_some()
            except BlockingIOError:
                break
            except OSError:
                count = 0
            self.ended = count == 0
            self._receiving = False
        self._receiving = False

    def take(self) -> Part | None:
        """Returns the rank's part in the next exchange; None if it has not arrived."""
        return self._parts.popleft() if self._parts else None

    def look(self) -> None:
        """Receives what has arrived, and finds out whether the process has ended."""
        was_alive = self.process is None or self.process.is_alive()
        self.receive()
        if not was_alive:
            # A process that the rank has forked may keep the socket open.
            self.ended = True

    def close(self) -> None:
        """Closes the descriptors."""
        self.ended = True
        self.socket.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def _send_some(self) -> None:
        self._blocked = False
        try:
            sent = self.socket.sendmsg(list(self._outgoing)[:2])
        except BlockingIOError:
            self._blocked = True
            return
        except OSError:
            # The other end is closed. Messages that it sent before can still be read.
            self._outgoing.clear()
            return
        while sent:
            first = self._outgoing.popleft()
            if sent < len(first):
                self._outgoing.appendleft(first[sent:])
            sent -= min(sent, len(first))

    def _skip_some(self) -> int:
        return len(self.socket.recv(1 << 16))

    def _receive_some(self) -> int:
        """Reads once; returns the number of bytes, 0 at the end of the stream."""
        if self._body is None:
            data = self.socket.recv(_HEADER.size - len(self._header))
            self._header += data
            if len(self._header) == _HEADER.size:
                _, call_bytes, value_bytes = _HEADER.unpack(self._header)
                self._body, self._filled = memoryview(bytearray(call_bytes + value_bytes)), 0
                self._finish_if_complete()
            return len(data)
        count = self.socket.recv_into(self._body[self._filled :])
        self._filled += count
        self._finish_if_complete()
        return count

    def _finish_if_complete(self) -> None:
        if self._body is None or self._filled < len(self._body):
            return
        kind, call_bytes, _ = _HEADER.unpack(self._header)
        call, value = bytes(self._body[:call_bytes]), self._body[call_bytes:]
        self._header.clear()
        self._body = None
        if kind == Kind.VALUE:
            self._parts.append(Part(call, value))
            return
        text = str(value, "utf-8", "replace")
        if kind == Kind.LOST:
            self.lost = PeerLostError(text)
        elif kind == Kind.MISMATCH:
            self.lost = CollectiveMismatchError(text)
        else:
            self.farewell = text


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
