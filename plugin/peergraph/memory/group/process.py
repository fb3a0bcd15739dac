"""The identity of a process, and whether it is alive, from /proc: ranks share a host."""

from __future__ import annotations

import functools
import gc
import os
import socket
from dataclasses import dataclass

_HOSTID = "PEERGRAPH_HOSTID"


def host_identity() -> str:
    """An identity of all processes that share memory: host name (containers differ) and boot id,
    as in NCCL; or the environment variable PEERGRAPH_HOSTID, as NCCL_HOSTID there.
    """
    given = os.environ.get(_HOSTID)
    if given:
        return given
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{socket.gethostname()}/{file.read().strip()}"


def host_name() -> str:
    """The name of this machine in errors."""
    return os.environ.get(_HOSTID) or socket.gethostname()


def pid_namespace() -> str:
    """The PID namespace: processes in the same one see each other under the same numbers."""
    return os.readlink("/proc/self/ns/pid")


def _state_and_start(pid: int) -> tuple[str, int] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command, in parentheses, may hold spaces and parentheses of its own.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0].decode(), int(fields[19])


@functools.cache
def keep_gpu_objects_from_forked_children() -> None:
    """Keeps the garbage collector of forked children from objects of their parent, from now on.

    Data loader workers are forked. A garbage collection there that frees a GPU tensor of the parent
    ends the process, since CUDA does not work in it.
    """
    os.register_at_fork(after_in_child=gc.freeze)


@dataclass(frozen=True)
class ProcessId:
    """A process of this host. Unlike a pid alone, it cannot mean a later process."""

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """None where this process cannot see it: it has ended, or lives in another PID namespace
        (the system gives 0 for it)."""
        state = _state_and_start(pid) if pid > 0 else None
        return None if state is None else cls(pid, state[1])

    def is_alive(self) -> bool:
        """False once the process has ended, reaped or not."""
        return self._state() not in "ZX"

    def is_stopped(self) -> bool:
        """Whether a signal (SIGSTOP) or a debugger has stopped it."""
        return self._state() in "Tt"

    def _state(self) -> str:
        """The state letter that `ps` shows; X for a process that has ended."""
        state = _state_and_start(self.pid)
        return "X" if state is None or state[1] != self.start else state[0]
