"""Runs ranks that belong to several machines, by PEERGRAPH_HOSTID."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.distributed as dist

from peergraph.testing import run_ranks


def run_on_hosts(
    fn: Callable[..., Any],
    hosts: str,
    *args: Any,
    device: str = "cpu",
    may_die: Collection[int] = (),
    timeout_s: float = 120,
) -> list[Any]:
    """Calls ``fn(*args)`` on as many ranks as `hosts` has letters; rank r is on host ``hosts[r]``.

    On GPUs, rank r has GPU r, and NCCL takes the hosts for different ones, too.
    """
    return run_ranks(
        _on_host, len(hosts), fn, hosts, args, device=device, may_die=may_die, timeout_s=timeout_s
    )


def _on_host(fn: Callable[..., Any], hosts: str, args: tuple[Any, ...]) -> Any:
    host = hosts[dist.get_rank()]
    # Read when the first communicator is made.
    os.environ.update(PEERGRAPH_HOSTID=host, NCCL_HOSTID=host, NCCL_SOCKET_IFNAME="lo")
    if torch.cuda.is_initialized():
        os.environ["NCCL_NVLS_ENABLE"] = "0"
    return fn(*args)


def device_of_rank(device: str) -> torch.device:
    """The device of this rank: GPU r for rank r."""
    if device == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
