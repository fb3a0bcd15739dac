"""Authenticated connections between the ranks of a host.

Each rank listens on a Unix socket with a random name in the abstract namespace, and publishes the
name and a secret to all ranks. Before it reads anything else, each end of a connection asks the
kernel for the process at the other end, and compares the secret. Connections of other processes
are closed unread.
"""

from __future__ import annotations

import hmac
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NoReturn

from peergraph.errors import PeerLostError
from peergraph.memory.group.call_log import CallLog
from peergraph.memory.group.connection import Connection
from peergraph.memory.group.process import ProcessId, pid_namespace
from peergraph.memory.group.rank_names import RankNames

_NAME_BYTES, _SECRET_BYTES = 16, 32
# More than a host has ranks, because other processes may connect too.
_BACKLOG = 1024
_RETRY_S = 0.01
# How often to look whether the processes of missing ranks are alive.
_LOOK_INTERVAL_S = 0.2
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid
_HELLO = struct.Struct(f"!I{_SECRET_BYTES}s")  # the caller's rank, the called rank's secret


@dataclass(frozen=True)
class Endpoint:
    """The address of a rank's socket, and the values by which other ranks recognise the rank."""

    name: str
    secret: str
    pid: int
    namespace: str

    def to_dict(self) -> dict[str, str | int]:
        """Returns the endpoint as plain values, for :meth:`from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Endpoint:
        """Reverses :meth:`to_dict`; raises ValueError for values that it cannot have returned."""
        endpoint = cls(*(values.get(key) for key in cls.__dataclass_fields__))  # type: ignore[arg-type]
        texts = (endpoint.name, endpoint.secret, endpoint.namespace)
        if not all(isinstance(t, str) for t in texts) or type(endpoint.pid) is not int:
            raise ValueError("a value has another type")
        if len(bytes.fromhex(endpoint.name)) != _NAME_BYTES:
            raise ValueError("the name has another length")
        if len(bytes.fromhex(endpoint.secret)) != _SECRET_BYTES:
            raise ValueError("the secret has another length")
        return endpoint

    @property
    def address(self) -> bytes:
        """The socket's name in the abstract namespace, which is not in the file system."""
        return b"\0peergraph-" + self.name.encode()

    @property
    def secret_bytes(self) -> bytes:
        """The secret in the form in which it is sent."""
        return bytes.fromhex(self.secret)


class Listener:
    """The socket on which this rank accepts the other ranks' connections."""

    def __init__(self) -> None:
        self.endpoint = Endpoint(
            secrets.token_hex(_NAME_BYTES),
            secrets.token_hex(_SECRET_BYTES),
            os.getpid(),
            pid_namespace(),
        )
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.endpoint.address)
        self.socket.listen(_BACKLOG)
        self.socket.setblocking(False)

    def close(self) -> None:
        """Accepts no further connections."""
        self.socket.close()


class Handshake:
    """Connects this rank with all others: it calls lower ranks, and higher ranks call it."""

    def __init__(
        self, rank: int, endpoints: list[Endpoint], listener: Listener, names: RankNames
    ) -> None:
        self._rank = rank
        self._names = names
        self._endpoints = endpoints
        self._listener = listener
        self.log = CallLog()
        """The exchanges that this rank joins, and those of the ranks that are connected."""
        self._connected: dict[int, tuple[socket.socket, int]] = {}
        # Connections that are not authenticated yet: the expected rank (None: any higher rank), the
        # process id, the received bytes, and the received descriptors.
        self._pending: dict[socket.socket, tuple[int | None, int, bytearray, list[int]]] = {}
        self._selector = selectors.DefaultSelector()
        # None: the process has ended already.
        self._processes = {
            r: ProcessId.of(endpoint.pid)
            for r, endpoint in enumerate(endpoints)
            if r != rank and endpoint.namespace == listener.endpoint.namespace
        }

    def connect(self, timeout: float, deadline: float) -> list[Connection]:
        """Returns the connections. Raises PeerLostError if a rank cannot be reached in time, or
        ends before it is connected.
        """
        try:
            self._selector.register(self._listener.socket, selectors.EVENT_READ)
            for rank in range(self._rank):
                self._call(rank, deadline)
            while missing := self._missing():
                self._raise_if_ended()
                if time.monotonic() >= deadline:
                    raise PeerLostError(f"{self._names(missing)} did not join within {timeout:g} s")
                seconds = min(_LOOK_INTERVAL_S, deadline - time.monotonic())
                for key, _ in self._selector.select(max(0.0, seconds)):
                    self._serve(key.fileobj)  # type: ignore[arg-type]
            return [Connection(rank, *connected) for rank, connected in self._connected.items()]
        except BaseException:
            for connected, _ in self._connected.values():
                connected.close()
            raise
        finally:
            for connected, (*_, fds) in self._pending.items():
                connected.close()
                _close_files(fds)
            self.log.close_file()
            self._selector.close()

    def _missing(self) -> list[int]:
        """Returns the ranks that are not connected yet."""
        return sorted({*range(len(self._endpoints))} - {*self._connected, self._rank})

    def _raise_if_ended(self) -> None:
        """Raises PeerLostError if processes of ranks that are not connected yet have ended.

        A rank that is connected has all that it needs of this one, and may have ended.
        """
        ended = [rank for rank in self._missing() if self._has_ended(rank)]
        if ended:
            pids = ", ".join(str(self._endpoints[rank].pid) for rank in ended)
            raise PeerLostError(f"{self._names(ended)} died (pid {pids})")

    def _has_ended(self, rank: int) -> bool:
        """Returns whether the process of a rank is known to have ended."""
        if rank not in self._processes:
            return False
        process = self._processes[rank]
        return process is None or not process.is_alive()

    def _raise_death_of(self, rank: int, pid: int) -> NoReturn:
        """Raises PeerLostError for a rank whose connection has ended, and for others that died."""
        self._raise_if_ended()
        raise PeerLostError(f"{self._names([rank])} died (pid {pid})")

    def _send(self, connected: socket.socket, data: bytes, rank: int, pid: int) -> None:
        """Sends a few bytes, which a new connection always accepts, and this rank's log."""
        try:
            socket.send_fds(connected, [data], [self.log.fd])
        except OSError:
            connected.close()
            self._raise_death_of(rank, pid)

    def _call(self, rank: int, deadline: float) -> None:
        endpoint = self._endpoints[rank]
        connected = socket.socket(socket.AF_UNIX)
        connected.setblocking(False)
        while True:
            try:
                connected.connect(endpoint.address)
                break
            except BlockingIOError:  # the backlog is full
                if time.monotonic() >= deadline:
                    connected.close()
                    raise PeerLostError(f"{self._names([rank])} accepts no connections") from None
                time.sleep(_RETRY_S)
            except OSError as error:
                connected.close()
                self._raise_if_ended()
                raise PeerLostError(
                    f"{self._names([rank])} cannot be reached: it ended (pid {endpoint.pid}), or "
                    f"the ranks of this host are in different network namespaces ({error})"
                ) from error
        pid, uid = _process_behind(connected)
        if not self._can_be(endpoint, pid, uid):
            connected.close()
            raise PeerLostError(
                f"{self._names([rank])} cannot be trusted: process {pid} of user {uid} answers for "
                f"process {endpoint.pid}, and this rank's user is {os.geteuid()}"
            )
        self._send(connected, _HELLO.pack(self._rank, endpoint.secret_bytes), rank, pid)
        self._await(connected, rank, pid)

    def _serve(self, ready: socket.socket) -> None:
        if ready is self._listener.socket:
            self._accept()
            return
        rank, pid, received, fds = self._pending[ready]
        size = _HELLO.size if rank is None else _SECRET_BYTES
        data = _read(ready, size - len(received), fds)
        received += data
        if data and len(received) < size:
            return
        self._selector.unregister(ready)
        del self._pending[ready]
        if rank is None:
            rank = self._caller(bytes(received), pid)
            if rank is None or rank in self._connected:
                ready.close()
                _close_files(fds)
                return
            self._send(ready, self._endpoints[rank].secret_bytes, rank, pid)
        elif not hmac.compare_digest(received, self._listener.endpoint.secret_bytes):
            ready.close()
            _close_files(fds)
            self._raise_death_of(rank, pid)
        for fd in fds:
            self.log.add(rank, fd)
        self._connected[rank] = (ready, pid)

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.socket.accept()
        except OSError:
            return
        pid, uid = _process_behind(connected)
        if uid == os.geteuid():
            self._await(connected, None, pid)
        else:
            connected.close()

    def _await(self, connected: socket.socket, rank: int | None, pid: int) -> None:
        """Registers a connection until the other end authenticates as `rank`; None: as any higher
        rank.
        """
        connected.setblocking(False)
        self._pending[connected] = (rank, pid, bytearray(), [])
        self._selector.register(connected, selectors.EVENT_READ)

    def _caller(self, hello: bytes, pid: int) -> int | None:
        """Returns the rank of the caller; None if the caller is no rank."""
        if len(hello) != _HELLO.size:
            return None
        rank, secret = _HELLO.unpack(hello)
        if not hmac.compare_digest(secret, self._listener.endpoint.secret_bytes):
            return None
        is_member = self._rank < rank < len(self._endpoints)
        return (
            rank if is_member and self._can_be(self._endpoints[rank], pid, os.geteuid()) else None
        )

    def _can_be(self, endpoint: Endpoint, pid: int, uid: int) -> bool:
        """Returns whether that process can be the rank. Across PID namespaces the process ids
        differ and are ignored.
        """
        same_numbers = endpoint.namespace == self._listener.endpoint.namespace
        return uid == os.geteuid() and (endpoint.pid == pid or not same_numbers)


def _read(connected: socket.socket, num_bytes: int, fds: list[int]) -> bytes:
    """Returns the received bytes; no bytes if the other end is closed. Adds the received
    descriptors to `fds`.
    """
    try:
        data, received, _, _ = socket.recv_fds(connected, num_bytes, 1)
    except OSError:
        return b""
    fds += received
    return data


def _close_files(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _process_behind(connected: socket.socket) -> tuple[int, int]:
    """Returns the process id and the user id of the other end, from the kernel."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return pid, uid
