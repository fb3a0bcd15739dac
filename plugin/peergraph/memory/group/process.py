"""Who a process is, and whether it still lives: told from /proc, since ranks share a host."""

from __future__ import annotations

import functools
import gc
import os
import socket
from dataclasses import dataclass


def host_identity() -> str:
    """The same on all processes that share memory: host name (containers differ) and boot id."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{socket.gethostname()}/{file.read().strip()}"


def pid_namespace() -> str:
    """Processes with the same one know each other by the same numbers."""
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
    """From now on, a forked child leaves alone what it inherited as garbage of its parent.

    Data loader workers are forked, and a collection there that meets a parent's GPU tensor ends the
    process: CUDA does not work in it.
    """
    os.register_at_fork(after_in_child=gc.freeze)


@dataclass(frozen=True)
class ProcessId:
    """A process of this host; unlike a bare pid never mistaken for a later process."""

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
        """The letter of `ps`; X where it is gone."""
        state = _state_and_start(self.pid)
        return "X" if state is None or state[1] != self.start else state[0]
