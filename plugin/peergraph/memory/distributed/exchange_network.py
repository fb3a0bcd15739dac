"""Messages between all ranks of all machines, over connections that nothing else uses."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from peergraph.errors import PeerLostError
from peergraph.memory.group.group import Group

_CPU = torch.device("cpu")
# How long to look for further ranks that are missing, once one is.
_LOOK_S = 0.01


class ExchangeNetwork:
    """Sends bytes between ranks: from host memory over Gloo, between GPUs over NCCL.

    One thread at a time sends and receives. Messages between two ranks with the same tag arrive in
    order. Ranks are those of torch.distributed.
    """

    def __init__(self, group: Group, name: str, what: str) -> None:
        """Connects all ranks of all machines. Collective.

        Args:
            name: that no other network of these ranks has.
            what: that connects, for errors.

        Raises:
            PeerLostError: a rank did not come in time.
        """
        self.group = group
        try:
            self._gloo = _gloo_group(group, f"rows/{name}")
            # Gloo fails on a rank that is still connecting when another one, already connected,
            # ends.
            self._gloo.barrier().wait()
        except RuntimeError as error:
            raise PeerLostError(
                f"the ranks of all machines did not come to {what} within {group.timeout:g} s: "
                f"{error}"
            ) from error
        self._nccl = _nccl_group(group)

    @property
    def has_nccl(self) -> bool:
        """Whether tensors on GPUs can be sent from GPU to GPU."""
        return self._nccl is not None

    def transfer(
        self,
        parts: Mapping[int, torch.Tensor],
        sizes: Mapping[int, int],
        tag: int,
        what: str,
        *,
        by_nccl: bool = False,
    ) -> Transfer:
        """Begins to send to and receive from other ranks; empty messages are not sent.

        Args:
            parts: uint8 [n] by receiver, contiguous and on the group's device.
            sizes: by sender, the bytes that come.
            tag: of the messages; 0 or more.
            what: is transferred, for errors.
            by_nccl: all ranks call this together; sent from GPU to GPU, in the current stream.
        """
        if by_nccl:
            return self._by_nccl(parts, sizes)
        transfer = Transfer(self.group, what)
        for rank, part in parts.items():
            if part.numel():
                # Waits for the GPU, where the part is there.
                data = part.to(_CPU)
                transfer.sends.append((data, self._pg().send([data], rank, tag)))
        for rank, size in sizes.items():
            if size:
                inbox = torch.empty(size, dtype=torch.uint8, device=_CPU)
                transfer.inboxes[rank] = inbox
                transfer.receives[rank] = self._pg().recv([inbox], rank, tag)
        return transfer

    def close(self) -> None:
        """Closes the connections; the others' waits for this rank end with an error."""
        gloo, self._gloo = self._gloo, None
        abort = getattr(gloo, "abort", None)
        if abort is not None:
            with suppress(RuntimeError):
                abort()

    def _by_nccl(self, parts: Mapping[int, torch.Tensor], sizes: Mapping[int, int]) -> Transfer:
        device = self.group.device
        ranks = range(self.group.machines.world_size)
        empty = torch.empty(0, dtype=torch.uint8, device=device)
        outbox = torch.cat([parts.get(rank, empty) for rank in ranks])
        expected = [sizes.get(rank, 0) for rank in ranks]
        given = [parts[rank].numel() if rank in parts else 0 for rank in ranks]
        inbox = torch.empty(sum(expected), dtype=torch.uint8, device=device)
        dist.all_to_all_single(inbox, outbox, expected, given, group=self._nccl)
        transfer = Transfer(self.group, "")
        for rank, part in enumerate(torch.split(inbox, expected)):
            if part.numel():
                transfer.inboxes[rank] = part
        return transfer

    def _pg(self) -> Any:
        if self._gloo is None:
            raise RuntimeError("this exchange of rows has been closed")
        return self._gloo


class Transfer:
    """Messages on their way."""

    def __init__(self, group: Group, what: str) -> None:
        self._group = group
        self._what = what
        self.sends: list[tuple[torch.Tensor, Any]] = []
        self.receives: dict[int, Any] = {}
        self.inboxes: dict[int, torch.Tensor] = {}

    def wait(self, device: torch.device | None = None) -> dict[int, torch.Tensor]:
        """Returns what came, uint8 by sender; and waits until everything is sent.

        Args:
            device: of what came; None: the group's.

        Raises:
            PeerLostError: a rank is lost or did not send in time.
        """
        deadline = time.monotonic() + self._group.timeout
        for rank, work in self.receives.items():
            self._wait(work, rank, deadline)
        for _, work in self.sends:
            work.wait()
        self.receives, self.sends = {}, []
        device = device or self._group.device
        return {rank: part.to(device) for rank, part in self.inboxes.items()}

    def _wait(self, work: Any, rank: int, deadline: float) -> None:
        left = max(_LOOK_S, deadline - time.monotonic())
        try:
            work.wait(timedelta(seconds=left))
        except RuntimeError as error:
            if "timed out" not in str(error).lower():
                raise PeerLostError(
                    f"{_describe(self._group, rank)} is lost or has left {self._what}: see its "
                    f"error ({_first_line(error)})"
                ) from error
            missing = [r for r in self.receives if r >= rank and self._is_missing(r)]
            names = ", ".join(_describe(self._group, r) for r in [*missing] or [rank])
            raise PeerLostError(
                f"{names} did not come to {self._what} within {self._group.timeout:g} s. With "
                'machines="shard" all ranks of all machines iterate the same loaders in the same '
                "order, a rank without seeds too"
            ) from error

    def _is_missing(self, rank: int) -> bool:
        try:
            self.receives[rank].wait(timedelta(seconds=_LOOK_S))
        except RuntimeError:
            return True
        return False


def _describe(group: Group, rank: int) -> str:
    machines = group.machines
    return f"rank {rank} of {machines.name(machines.machine_of(rank))}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def _gloo_group(group: Group, name: str) -> Any:
    machines, timeout = group.machines, timedelta(seconds=group.timeout)
    # Not a group of torch.distributed's: see MachineBroadcast.
    store = machines.substore(name)
    return dist.ProcessGroupGloo(store, machines.rank, machines.world_size, timeout)


_nccl_groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _nccl_group(group: Group) -> Any:
    """The process group for rows between GPUs, made once for torch's process group; None without
    NCCL. Collective.
    """
    if group.device.type != "cuda" or "nccl" not in str(dist.get_backend_config()):
        return None
    world = dist.group.WORLD
    if world not in _nccl_groups:
        made = dist.new_group(backend="nccl")
        # Makes the communicator, while no other work is on the way.
        dist.barrier(group=made, device_ids=[group.device.index])
        _nccl_groups[world] = made
    return _nccl_groups[world]
