"""What other ranks' processes are doing."""

from __future__ import annotations

import os
import signal
import time

from peergraph.memory import Group
from peergraph.memory.group.connection import Kind

_LONG_S = 100.0


def interrupt_when_it_waits(group: Group, pid: int) -> None:
    """Sends rank 0 Ctrl-C once it is in a collective; returns once it has broken that off."""
    assert group._channel is not None
    peers = group._channel.peers
    while not peers.connections[0]._parts:
        peers.wait(time.monotonic() + _LONG_S)
    while _state(pid) != "S":
        time.sleep(0.001)
    os.kill(pid, signal.SIGINT)
    while not peers.connections[0].ended and peers.connections[0].lost is None:
        peers.wait(time.monotonic() + _LONG_S)


def send_once_given_up(group: Group, rank: int) -> None:
    """Makes this rank's next message to a rank wait until that rank has given up the group."""
    assert group._channel is not None
    peers = group._channel.peers
    connection = peers.connections[rank]
    send = connection.send

    def send_late(kind: Kind, value: bytes, call: bytes = b"") -> None:
        connection.send = send  # type: ignore[method-assign]
        while connection.lost is None:
            peers.wait(time.monotonic() + _LONG_S)
        send(kind, value, call)

    connection.send = send_late  # type: ignore[method-assign]


def is_running(pid: int) -> bool:
    """Whether a process has not ended."""
    return _state(pid) not in "ZX"


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
