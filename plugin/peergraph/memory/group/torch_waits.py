"""Ends this process's waits in torch.distributed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from peergraph.memory.group.daemon_threads import start_daemon

_ESTABLISHED = "01"


def abort_communicators() -> None:
    """Aborts NCCL's communicators of all process groups: their kernels and calls end.

    Returns at once: each communicator is aborted in a separate thread, since an abort may have to
    wait for the end of another communicator's kernel.
    """
    for backend in _nccl_backends():
        abort = getattr(backend, "abort", None) or getattr(backend, "_abort", None)
        if abort is not None:
            start_daemon(partial(_quietly, abort), "peergraph abort")


def close_connections(pids: Iterable[int]) -> None:
    """Closes the TCP connections between this process and other processes.

    That ends waits of Gloo, and waits for a store of torch on another rank.
    """
    remote_sockets = {link for pid in pids for link in _sockets(pid).values()}
    ends = _ends()
    for fd, link in _sockets(os.getpid()).items():
        local, remote = ends.get(link, ("", ""))
        others = [other for other, addresses in ends.items() if addresses == (remote, local)]
        if any(other in remote_sockets for other in others):
            # The descriptor or the connection may have been closed meanwhile.
            with suppress(OSError), socket.socket(fileno=os.dup(fd)) as connected:
                connected.shutdown(socket.SHUT_RDWR)


def _nccl_backends() -> Iterator[Any]:
    world = getattr(dist.distributed_c10d, "_world", None)
    groups = list(getattr(world, "pg_map", {})) or [dist.group.WORLD]
    for group in groups:
        # A process group without NCCL has no backend for GPUs, or has Gloo as the backend.
        with suppress(Exception):
            backend = group._get_backend(torch.device("cuda"))
            if "NCCL" in type(backend).__name__:
                yield backend


def _quietly(abort: Any) -> None:
    with suppress(RuntimeError):
        abort()


def _sockets(pid: int) -> dict[int, str]:
    """Returns the open sockets of a process by descriptor, as links of /proc name them."""
    sockets = {}
    with suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                link = os.readlink(fd)
                if link.startswith("socket:"):
                    sockets[int(fd.name)] = link
    return sockets


def _ends() -> dict[str, tuple[str, str]]:
    """Returns the host's TCP connections: for each socket, its address and the remote address."""
    ends = {}
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _ESTABLISHED:
                    ends[f"socket:[{fields[9]}]"] = (fields[1], fields[2])
    return ends
