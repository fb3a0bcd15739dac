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


def _state_and_start(pid: int) -> tuple[str, int] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command, in parentheses, may hold spaces and parentheses of its own.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0].decode(), int(fields[19])


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


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
    namespace: str

    @classmethod
    def own(cls) -> ProcessId:
        """This process."""
        state = _state_and_start(os.getpid())
        assert state is not None
        return cls(os.getpid(), state[1], _pid_namespace())

    def is_alive(self) -> bool:
        """False once the process has ended, reaped or not. True where it cannot be seen."""
        if self.namespace != _pid_namespace():
            return True
        state = _state_and_start(self.pid)
        return state is not None and state[1] == self.start and state[0] not in "ZX"
