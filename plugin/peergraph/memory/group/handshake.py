"""How the ranks of a host come to trust a connection between them.

Each rank listens on a Unix socket of a random name that no file stands for, and makes the name and
a secret known where all ranks read. Either end of a connection asks the kernel whose process is at
the other end, and for the secret, before it takes in anything else. What another process sends is
never looked at: its connection is closed.
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

from peergraph.errors import PeerLostError
from peergraph.memory.group.calls import name_ranks
from peergraph.memory.group.connection import Connection
from peergraph.memory.group.process import pid_namespace

_NAME_BYTES, _SECRET_BYTES = 16, 32
# More than ranks of a host: other processes may knock, too.
_BACKLOG = 1024
_RETRY_S = 0.01
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid
_HELLO = struct.Struct(f"!I{_SECRET_BYTES}s")  # the caller's rank, the secret of whom it calls


@dataclass(frozen=True)
class Card:
    """How to reach a rank, and how it is known to be that rank."""

    name: str
    secret: str
    pid: int
    namespace: str

    def to_dict(self) -> dict[str, str | int]:
        """For :meth:`from_dict`; plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Card:
        """Raises ValueError for what :meth:`to_dict` cannot have given."""
        card = cls(*(values.get(key) for key in cls.__dataclass_fields__))  # type: ignore[arg-type]
        texts = (card.name, card.secret, card.namespace)
        if not all(isinstance(t, str) for t in texts) or type(card.pid) is not int:
            raise ValueError("a value has another type")
        if len(bytes.fromhex(card.name)) != _NAME_BYTES:
            raise ValueError("the name has another length")
        if len(bytes.fromhex(card.secret)) != _SECRET_BYTES:
            raise ValueError("the secret has another length")
        return card

    @property
    def address(self) -> bytes:
        """In the abstract namespace: not in the file system, gone with the process."""
        return b"\0peergraph-" + self.name.encode()

    @property
    def secret_bytes(self) -> bytes:
        """The secret as it is sent."""
        return bytes.fromhex(self.secret)


class Door:
    """Where other ranks connect to this one."""

    def __init__(self) -> None:
        self.card = Card(
            secrets.token_hex(_NAME_BYTES),
            secrets.token_hex(_SECRET_BYTES),
            os.getpid(),
            pid_namespace(),
        )
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.card.address)
        self.socket.listen(_BACKLOG)
        self.socket.setblocking(False)

    def close(self) -> None:
        """Lets nobody in any more."""
        self.socket.close()


class Meeting:
    """Connects this rank with all others: it calls those below it, those above it call."""

    def __init__(self, rank: int, cards: list[Card], door: Door) -> None:
        self._rank = rank
        self._cards = cards
        self._door = door
        self._found: dict[int, tuple[socket.socket, int]] = {}
        # Connections that have not proved yet what they are, and what came over them.
        self._pending: dict[socket.socket, tuple[int | None, int, bytearray]] = {}
        self._selector = selectors.DefaultSelector()

    def hold(self, timeout: float, deadline: float) -> list[Connection]:
        """Returns the connections. PeerLostError where a rank cannot be reached in time."""
        try:
            self._selector.register(self._door.socket, selectors.EVENT_READ)
            for rank in range(self._rank):
                self._call(rank, deadline)
            while len(self._found) < len(self._cards) - 1:
                if time.monotonic() >= deadline:
                    missing = sorted({*range(len(self._cards))} - {*self._found, self._rank})
                    raise PeerLostError(f"{name_ranks(missing)} did not join within {timeout:g} s")
                for key, _ in self._selector.select(max(0.0, deadline - time.monotonic())):
                    self._serve(key.fileobj)  # type: ignore[arg-type]
            return [Connection(rank, *found) for rank, found in self._found.items()]
        except BaseException:
            for connected, _ in self._found.values():
                connected.close()
            raise
        finally:
            for connected in self._pending:
                connected.close()
            self._selector.close()

    def _call(self, rank: int, deadline: float) -> None:
        card = self._cards[rank]
        connected = socket.socket(socket.AF_UNIX)
        connected.setblocking(False)
        while True:
            try:
                connected.connect(card.address)
                break
            except BlockingIOError:  # so many wait at the door
                if time.monotonic() >= deadline:
                    connected.close()
                    raise PeerLostError(f"rank {rank} lets nobody in") from None
                time.sleep(_RETRY_S)
            except OSError as error:
                connected.close()
                raise PeerLostError(
                    f"rank {rank} cannot be reached: it ended (pid {card.pid}), or the ranks of "
                    f"this host are in different network namespaces ({error})"
                ) from error
        pid, uid = _process_behind(connected)
        if not self._may_be(card, pid, uid):
            connected.close()
            raise PeerLostError(
                f"rank {rank} cannot be trusted: process {pid} of user {uid} answers for process "
                f"{card.pid}, and this rank's user is {os.geteuid()}"
            )
        connected.send(_HELLO.pack(self._rank, card.secret_bytes))
        self._await(connected, rank, pid)

    def _serve(self, ready: socket.socket) -> None:
        if ready is self._door.socket:
            self._let_in()
            return
        rank, pid, received = self._pending[ready]
        wanted = _HELLO.size if rank is None else _SECRET_BYTES
        data = _read(ready, wanted - len(received))
        received += data
        if data and len(received) < wanted:
            return
        self._selector.unregister(ready)
        del self._pending[ready]
        if rank is None:
            rank = self._caller(bytes(received), pid)
            if rank is None or rank in self._found:
                ready.close()
                return
            ready.send(self._cards[rank].secret_bytes)
        elif not hmac.compare_digest(received, self._door.card.secret_bytes):
            ready.close()
            raise PeerLostError(f"rank {rank} died (pid {pid})")
        self._found[rank] = (ready, pid)

    def _let_in(self) -> None:
        try:
            connected, _ = self._door.socket.accept()
        except OSError:
            return
        pid, uid = _process_behind(connected)
        if uid == os.geteuid():
            self._await(connected, None, pid)
        else:
            connected.close()

    def _await(self, connected: socket.socket, rank: int | None, pid: int) -> None:
        """`rank`: who is expected to prove itself; None where that is to be seen."""
        connected.setblocking(False)
        self._pending[connected] = (rank, pid, bytearray())
        self._selector.register(connected, selectors.EVENT_READ)

    def _caller(self, hello: bytes, pid: int) -> int | None:
        """The rank that calls; None where it is none."""
        if len(hello) != _HELLO.size:
            return None
        rank, secret = _HELLO.unpack(hello)
        if not hmac.compare_digest(secret, self._door.card.secret_bytes):
            return None
        known = self._rank < rank < len(self._cards)
        return rank if known and self._may_be(self._cards[rank], pid, os.geteuid()) else None

    def _may_be(self, card: Card, pid: int, uid: int) -> bool:
        """Whether that process can be the rank. Across PID namespaces numbers mean nothing."""
        same_numbers = card.namespace == self._door.card.namespace
        return uid == os.geteuid() and (card.pid == pid or not same_numbers)


def _read(connected: socket.socket, num_bytes: int) -> bytes:
    """What has come; nothing where the other end is closed."""
    try:
        return connected.recv(num_bytes)
    except OSError:
        return b""


def _process_behind(connected: socket.socket) -> tuple[int, int]:
    """Process id and user of the other end, from the kernel."""
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return pid, uid
