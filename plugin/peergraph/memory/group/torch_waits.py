"""Ends this process's waits in torch.distributed."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_ESTABLISHED = "01"


def abort_communicators() -> None:
    """Aborts NCCL's communicators of all process groups: their kernels and calls end.

    Returns at once: each communicator is aborted in a thread of its own, since one may have to wait
    for the end of another one's kernel.
    """
    for backend in _nccl_backends():
        abort = getattr(backend, "abort", None) or getattr(backend, "_abort", None)
        if abort is not None:
            threading.Thread(target=_quietly, args=(abort,), daemon=True).start()


def close_connections(pids: Iterable[int]) -> None:
    """Closes the TCP connections between this process and those processes.

    That ends Gloo's waits, and waits for a store of torch on another rank.
    """
    theirs = {link for pid in pids for link in _sockets(pid).values()}
    ends = _ends()
    for fd, link in _sockets(os.getpid()).items():
        local, remote = ends.get(link, ("", ""))
        others = [other for other, found in ends.items() if found == (remote, local)]
        if any(other in theirs for other in others):
            # The descriptor may have been closed meanwhile, or the connection.
            with suppress(OSError), socket.socket(fileno=os.dup(fd)) as connected:
                connected.shutdown(socket.SHUT_RDWR)


def _nccl_backends() -> Iterator[Any]:
    world = getattr(dist.distributed_c10d, "_world", None)
    groups = list(getattr(world, "pg_map", {})) or [dist.group.WORLD]
    for group in groups:
        # A process group without NCCL has no backend for GPUs, or Gloo's.
        with suppress(Exception):
            backend = group._get_backend(torch.device("cuda"))
            if "NCCL" in type(backend).__name__:
                yield backend


def _quietly(abort: Any) -> None:
    with suppress(RuntimeError):
        abort()


def _sockets(pid: int) -> dict[int, str]:
    """The sockets that a process has open, by descriptor, as links of /proc name them."""
    found = {}
    with suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                link = os.readlink(fd)
                if link.startswith("socket:"):
                    found[int(fd.name)] = link
    return found


def _ends() -> dict[str, tuple[str, str]]:
    """The TCP connections of the host: by socket, its own address and the other end's."""
    found = {}
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _ESTABLISHED:
                    found[f"socket:[{fields[9]}]"] = (fields[1], fields[2])
    return found
