"""The identity of a process, and whether it is alive, from /proc: ranks share a host."""

from __future__ import annotations

import functools
import gc
import os
import socket
from dataclasses import dataclass

_HOSTID = "PEERGRAPH_HOSTID"


def host_identity() -> str:
    """Returns an identity that all processes that share memory have.

    It is the host name (which differs between containers) and the boot id, as in NCCL, or the value
    of the environment variable PEERGRAPH_HOSTID, like NCCL_HOSTID.
    """
    identity = os.environ.get(_HOSTID)
    if identity:
        return identity
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{socket.gethostname()}/{file.read().strip()}"


def host_name() -> str:
    """Returns the name of this machine in errors."""
    return os.environ.get(_HOSTID) or socket.gethostname()


def pid_namespace() -> str:
    """Returns the PID namespace: processes in the same namespace use the same process numbers."""
    return os.readlink("/proc/self/ns/pid")


def _state_and_start(pid: int) -> tuple[str, int] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command, in parentheses, may contain spaces and parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0].decode(), int(fields[19])


@functools.cache
def keep_gpu_objects_from_forked_children() -> None:
    """Stops the garbage collector of children forked from now on from freeing parent objects.

    Data loader workers are forked. If a garbage collection in a worker freed a GPU tensor of the
    parent, the worker would end, since CUDA does not work in forked processes.
    """
    os.register_at_fork(after_in_child=gc.freeze)


@dataclass(frozen=True)
class ProcessId:
    """A process of this host. Unlike a pid, it never denotes a later process with the same pid."""

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Returns the process with this pid; None if this process cannot see it, because it has
        ended or is in another PID namespace (the system returns pid 0 for it).
        """
        state = _state_and_start(pid) if pid > 0 else None
        return None if state is None else cls(pid, state[1])

    def is_alive(self) -> bool:
        """Returns whether the process has not ended; zombies have ended."""
        return self._state() not in "ZX"

    def is_stopped(self) -> bool:
        """Returns whether a signal (SIGSTOP) or a debugger has stopped the process."""
        return self._state() in "Tt"

    def _state(self) -> str:
        """Returns the state letter that `ps` shows; X for a process that has ended."""
        state = _state_and_start(self.pid)
        return "X" if state is None or state[1] != self.start else state[0]
