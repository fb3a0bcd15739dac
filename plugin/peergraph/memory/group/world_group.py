"""The ranks of all machines as one group, for collectives that need no shared memory."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from peergraph.errors import CollectiveMismatchError, PeerLostError
from peergraph.memory.group.calls import Call
from peergraph.memory.group.group import Group
from peergraph.memory.group.machines import Machines
from peergraph.memory.group.rank_names import RankNames

# The first rank of a machine gives up before the other ranks give it up.
_PATIENCE = 0.9
_FIRST_POLL_S, _LAST_POLL_S = 2e-5, 1e-3
_PIECE_BYTES = 64 << 20
_OK, _LOST, _MISMATCH = b"\0", b"\1", b"\2"
_ERRORS = {_LOST: PeerLostError, _MISMATCH: CollectiveMismatchError}


class WorldGroup(Group):
    """The ranks of all machines, numbered as in torch.distributed.

    It has the collectives of a :class:`Group`, over the ranks of all machines. Its ranks share no
    memory: a :class:`SharedRegion` needs :attr:`node_group`. Values go through the first rank of
    each machine, and over the network once for each pair of machines.
    """

    def __init__(self, node_group: Group) -> None:
        """
        Args:
            node_group: the ranks of this machine.
        """
        machines = node_group.machines
        super().__init__(
            machines.rank,
            machines.world_size,
            node_group.device,
            node_group.timeout,
            node_group._channel,
            node_group._calls,
            machines,
        )
        self.names = _WorldNames(machines)
        self._node_group = node_group

    @staticmethod
    def of(group: Group) -> Group:
        """Returns the group of the ranks of all machines: `group` itself for one machine."""
        if isinstance(group, WorldGroup) or group.machines.count == 1:
            return group
        return WorldGroup(group)

    @property
    def node_group(self) -> Group:
        """The ranks of this machine, which share memory."""
        return self._node_group

    @property
    def torch_ranks(self) -> tuple[int, ...]:
        """See :attr:`Group.torch_ranks`."""
        return tuple(range(self.world_size))

    def all_gather_machines(self, value: Any) -> list[Any]:
        """See :meth:`Group.all_gather_machines`."""
        return self._node_group.all_gather_machines(value)

    def all_gather_results(self, value: Any) -> list[Any]:
        """See :meth:`Group.all_gather_results`."""
        return self._node_group.all_gather_results(value)

    def await_ranks(self, missing: Callable[[float], list[int]]) -> None:
        """Raises RuntimeError: only ranks of one machine wait for each other by shared memory."""
        raise RuntimeError("ranks of several machines share no memory: use the node_group")

    def _exchange(self, name: str, value: bytes) -> Sequence[bytes | memoryview]:
        node = self._node_group
        link = _Link.of(node)
        with self._calls.enter(name) as call:
            local_values = list(node._exchange("on this machine", value))
            result = b""
            if node.rank == 0:
                try:
                    parts = link.exchange(_join(local_values), call, self.timeout)
                    result = _OK + _join(parts)
                except CollectiveMismatchError as error:
                    result = _MISMATCH + str(error).encode()
                except RuntimeError as error:
                    assert self._channel is not None
                    silent = self._channel.peers.find_silent()
                    result = _LOST + (silent or str(error)).encode()
            result = bytes(node._exchange("on other machines", result)[0])
            if result[:1] != _OK:
                raise _ERRORS[result[:1]](result[1:].decode())
            by_rank: list[bytes | memoryview] = [b""] * self.world_size
            for ranks, joined in zip(self.machines.ranks, _split(result[1:]), strict=True):
                for rank, part in zip(ranks, _split(joined), strict=True):
                    by_rank[rank] = part
            return by_rank

    def __repr__(self) -> str:
        return f"WorldGroup(rank={self.rank}, world_size={self.world_size}, device={self.device})"


class _WorldNames(RankNames):
    """Names the ranks of all machines, each with its machine."""

    def __init__(self, machines: Machines) -> None:
        super().__init__(range(machines.world_size))
        self._machines = machines

    def __call__(self, ranks: Sequence[int]) -> str:
        """Names ranks, as in "rank 1 of machine 0 (a), ranks 2, 3 of machine 1 (b)"."""
        of_machines: dict[int, list[int]] = {}
        for rank in ranks:
            of_machines.setdefault(self._machines.machine_of(rank), []).append(rank)
        return ", ".join(
            f"{RankNames(range(self._machines.world_size), self._machines.name(machine))(numbers)}"
            for machine, numbers in of_machines.items()
        )


class _Link:
    """The connections between the first ranks of all machines, over Gloo.

    Waits are polls, so that the error of a lost machine can be raised at any time.
    """

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._name = machines.next_name()
        self._gloo: Any = None

    @classmethod
    def of(cls, group: Group) -> _Link:
        """Returns the link of a process group, created at the first call. All ranks call this."""
        if cls not in group.shared:
            group.shared[cls] = cls(group.machines)
        link: _Link = group.shared[cls]
        return link

    def exchange(self, message: bytes, call: Call, timeout: float) -> list[bytes]:
        """Returns the messages of all machines. Collective over their first ranks.

        Raises:
            CollectiveMismatchError: another machine is in another collective.
            PeerLostError: a machine did not join in time.
            RuntimeError: a connection was lost.
        """
        self._connect(call, timeout)
        name = " > ".join(call.names).encode()
        frame = _join([name, message])
        lengths = [self._broadcast(struct.pack("<q", len(frame)), 8, m, call, timeout)
                   for m in range(self._machines.count)]  # fmt: skip
        frames = [
            _split(self._broadcast(frame, struct.unpack("<q", length)[0], m, call, timeout))
            for m, length in enumerate(lengths)
        ]
        calls = {m: bytes(part).decode() for m, (part, _) in enumerate(frames)}
        if len(set(calls.values())) > 1:
            callers = [f"{self._machines.name(m)} called {other}" for m, other in calls.items()]
            raise CollectiveMismatchError(
                f"the machines are in different collectives: {', '.join(callers)}"
            )
        return [bytes(part) for _, part in frames]

    def _connect(self, call: Call, timeout: float) -> None:
        if self._gloo is not None:
            return
        limit = timedelta(seconds=_PATIENCE * timeout)
        machines = self._machines
        try:
            gloo: Any = dist.ProcessGroupGloo(
                machines.substore(f"all ranks/{self._name}"), machines.index, machines.count, limit
            )
        except RuntimeError as error:
            raise PeerLostError(
                f"the other machines did not join within {timeout:g} s: {call.in_full()} ({error})"
            ) from error
        # Gloo fails on a rank that is still connecting when another one, already connected, ends.
        _wait(gloo.barrier())
        self._gloo = gloo

    def _broadcast(
        self, frame: bytes, size: int, machine: int, call: Call, timeout: float
    ) -> bytes:
        """Returns the `size` bytes that a machine sends; `frame` holds those of this machine."""
        if machine == self._machines.index:
            data = torch.frombuffer(bytearray(frame), dtype=torch.uint8)
        else:
            data = torch.empty(size, dtype=torch.uint8, device="cpu")
        try:
            for piece in torch.split(data, _PIECE_BYTES):
                _wait(self._gloo.broadcast(piece, machine))
        except PeerLostError:
            raise
        except RuntimeError as error:
            raise PeerLostError(
                f"{self._machines.describe(machine)} did not join within {timeout:g} s: "
                f"{call.in_full()} ({error})"
            ) from error
        return data.numpy().tobytes()


def _wait(work: Any) -> None:
    pause = _FIRST_POLL_S
    while not work.is_completed():
        time.sleep(pause)
        pause = min(2 * pause, _LAST_POLL_S)
    work.wait()


def _join(parts: Sequence[bytes | memoryview]) -> bytes:
    """Joins parts into one message, for :func:`_split`."""
    lengths = [len(part) for part in parts]
    return b"".join([struct.pack(f"<{len(parts) + 1}q", len(parts), *lengths), *parts])


def _split(message: bytes | memoryview) -> list[memoryview]:
    view = memoryview(message)
    (count,) = struct.unpack_from("<q", view)
    lengths = struct.unpack_from(f"<{count}q", view, 8)
    begin, parts = 8 * (count + 1), []
    for length in lengths:
        parts.append(view[begin : begin + length])
        begin += length
    return parts
