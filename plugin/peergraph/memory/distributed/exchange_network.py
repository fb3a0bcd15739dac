"""Messages between all ranks of all machines, over connections that nothing else uses."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from peergraph.errors import PeerLostError
from peergraph.memory.group.group import Group
from peergraph.memory.group.machine_broadcast import connect

_CPU = torch.device("cpu")
# The receiver of words does not know their number: it has room for so many.
_FIRST_WORDS = 1 << 17
# After one rank timed out: how long to wait for each other rank, to name all missing ranks.
_LOOK_S = 0.01


class ExchangeNetwork:
    """Sends bytes between ranks: from host memory over Gloo, between GPUs over NCCL.

    Messages between two ranks with the same tag arrive in order. Threads may send and receive at
    the same time over Gloo, with different tags; NCCL is for the training thread only. Ranks are
    numbered as in torch.distributed.
    """

    def __init__(self, group: Group, name: str, purpose: str) -> None:
        """Connects all ranks of all machines. Collective.

        Args:
            group: the ranks of this machine.
            name: a name that no other network of these ranks has.
            purpose: the purpose of the network, for errors.

        Raises:
            PeerLostError: a rank did not join in time.
        """
        self.group = group
        try:
            self._gloo = connect(group, f"rows/{name}", range(group.machines.world_size))
        except RuntimeError as error:
            raise PeerLostError(
                f"the ranks of all machines did not come to {purpose} within {group.timeout:g} s: "
                f"{error}"
            ) from error
        self._nccl = _nccl_group(group)

    @property
    def has_nccl(self) -> bool:
        """Whether tensors on GPUs can be sent from GPU to GPU."""
        return self._nccl is not None

    def transfer(
        self,
        outbox: torch.Tensor,
        sent: Mapping[int, int],
        received: Mapping[int, int],
        tag: int,
        purpose: str,
        *,
        by_nccl: bool = False,
    ) -> Transfer:
        """Begins to send messages to ranks and to receive messages from them. Empty messages are
        not sent.

        Args:
            outbox: the messages, one after another: uint8 [bytes], on the group's device.
            sent: the ranks that get them, ascending, and the bytes of each message. This rank may
                be one of them.
            received: the ranks that send to this rank, ascending, and the bytes of each message.
            tag: the tag of the messages, 0 or more.
            purpose: the purpose of the transfer, for errors.
            by_nccl: whether to send from GPU to GPU, in the current stream; then all ranks make
                this call together.
        """
        if by_nccl:
            return Transfer(self.group, "", self._by_nccl(outbox, sent, received))
        inbox = torch.empty(sum(received.values()), dtype=torch.uint8, device=_CPU)
        transfer = Transfer(self.group, purpose, inbox)
        own = self.group.machines.rank
        # Waits for the GPU if the messages are on the GPU.
        outgoing = _by_rank(outbox.to(_CPU), sent)
        for rank, message in outgoing.items():
            if rank != own and message.numel():
                transfer.send(self._pg(), rank, message, tag)
        for rank, part in _by_rank(inbox, received).items():
            if rank == own:
                part.copy_(outgoing[own])
            elif part.numel():
                transfer.receive(self._pg(), rank, part, tag)
        return transfer

    def swap(
        self, messages: Mapping[int, np.ndarray], tag: int, purpose: str
    ) -> dict[int, np.ndarray]:
        """Sends words to some ranks, and returns the words that each of these ranks sends to this
        one.

        Args:
            messages: the message to each rank: int64; the first word is the number of words.
            tag: the tag of the messages, 0 or more.
            purpose: the purpose of the messages, for errors.

        Raises:
            PeerLostError: a rank is lost or did not send in time.
        """
        first = {rank: words[:_FIRST_WORDS] for rank, words in messages.items()}
        received = self._swap_words(first, dict.fromkeys(messages, _FIRST_WORDS), tag, purpose)
        lengths = {rank: int(words[0]) for rank, words in received.items()}
        received = {rank: words[: lengths[rank]] for rank, words in received.items()}
        rest = {
            r: words[_FIRST_WORDS:] for r, words in messages.items() if len(words) > _FIRST_WORDS
        }
        sizes = {r: n - _FIRST_WORDS for r, n in lengths.items() if n > _FIRST_WORDS}
        if rest or sizes:
            for rank, words in self._swap_words(rest, sizes, tag, purpose).items():
                received[rank] = np.concatenate([received[rank], words])
        return received

    def close(self) -> None:
        """Closes the connections. Other ranks that wait for this rank get an error."""
        gloo, self._gloo = self._gloo, None
        abort = getattr(gloo, "abort", None)
        if abort is not None:
            with suppress(RuntimeError):
                abort()

    def _swap_words(
        self, messages: Mapping[int, np.ndarray], sizes: Mapping[int, int], tag: int, purpose: str
    ) -> dict[int, np.ndarray]:
        """Sends words, and receives at most as many as `sizes` says: a message may be shorter than
        the buffer of Gloo's receiver.
        """
        transfer = Transfer(self.group, purpose)
        for rank, words in messages.items():
            transfer.send(self._pg(), rank, torch.from_numpy(words), tag)
        received = {rank: np.empty(size, np.int64) for rank, size in sizes.items()}
        for rank, words in received.items():
            transfer.receive(self._pg(), rank, torch.from_numpy(words), tag)
        transfer.finish()
        return received

    def _by_nccl(
        self, outbox: torch.Tensor, sent: Mapping[int, int], received: Mapping[int, int]
    ) -> torch.Tensor:
        ranks = range(self.group.machines.world_size)
        inbox = outbox.new_empty(sum(received.values()))
        from_ranks = [received.get(rank, 0) for rank in ranks]
        to_ranks = [sent.get(rank, 0) for rank in ranks]
        dist.all_to_all_single(inbox, outbox, from_ranks, to_ranks, group=self._nccl)
        return inbox

    def _pg(self) -> Any:
        if self._gloo is None:
            raise RuntimeError("this exchange of rows has been closed")
        return self._gloo


class Transfer:
    """Messages that are being sent and received."""

    def __init__(self, group: Group, purpose: str, inbox: torch.Tensor | None = None) -> None:
        self._group = group
        self._purpose = purpose
        self._inbox = inbox
        self.sends: list[tuple[int, torch.Tensor, Any]] = []
        self.receives: dict[int, Any] = {}

    def send(self, gloo: Any, rank: int, message: torch.Tensor, tag: int) -> None:
        """Begins to send a message, which is on the CPU.

        Raises:
            PeerLostError: the rank is lost.
        """
        with self._naming(rank):
            self.sends.append((rank, message, gloo.send([message], rank, tag)))

    def receive(self, gloo: Any, rank: int, inbox: torch.Tensor, tag: int) -> None:
        """Begins to receive a message into a tensor on the CPU. Raises as :meth:`send`."""
        with self._naming(rank):
            self.receives[rank] = gloo.recv([inbox], rank, tag)

    def wait(self) -> torch.Tensor:
        """Waits until all messages are sent and received. Returns the received ones, one after
        another, on the group's device.

        Raises:
            PeerLostError: a rank is lost or did not send in time.
        """
        self.finish()
        assert self._inbox is not None
        return self._inbox.to(self._group.device)

    def finish(self) -> None:
        """Waits until all messages are sent and received. Raises as :meth:`wait`."""
        deadline = time.monotonic() + self._group.timeout
        for rank, work in self.receives.items():
            self._wait(work, rank, deadline)
        for rank, _, work in self.sends:
            with self._naming(rank):
                work.wait()
        self.receives, self.sends = {}, []

    def _wait(self, work: Any, rank: int, deadline: float) -> None:
        left = max(_LOOK_S, deadline - time.monotonic())
        try:
            work.wait(timedelta(seconds=left))
        except RuntimeError as error:
            if "timed out" not in str(error).lower():
                raise self._lost(rank, error) from error
            missing = [r for r in self.receives if r >= rank and self._is_missing(r)]
            names = ", ".join(_describe(self._group, r) for r in [*missing] or [rank])
            raise PeerLostError(
                f"{names} did not come to {self._purpose} within {self._group.timeout:g} s. With "
                'machines="shard" all ranks of all machines iterate the same loaders in the same '
                "order, a rank without seeds too"
            ) from error

    @contextmanager
    def _naming(self, rank: int) -> Iterator[None]:
        """Returns a context in which an error of Gloo becomes one that names the rank."""
        try:
            yield
        except RuntimeError as error:
            raise self._lost(rank, error) from error

    def _lost(self, rank: int, error: RuntimeError) -> PeerLostError:
        return PeerLostError(
            f"{_describe(self._group, rank)} is lost or has left {self._purpose}: see its error "
            f"({_first_line(error)})"
        )

    def _is_missing(self, rank: int) -> bool:
        try:
            self.receives[rank].wait(timedelta(seconds=_LOOK_S))
        except RuntimeError:
            return True
        return False


def _by_rank(messages: torch.Tensor, sizes: Mapping[int, int]) -> dict[int, torch.Tensor]:
    """Returns the message of each rank, of messages that follow each other."""
    return dict(zip(sizes, torch.split(messages, list(sizes.values())), strict=True))


def _describe(group: Group, rank: int) -> str:
    machines = group.machines
    return f"rank {rank} of {machines.name(machines.machine_of(rank))}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


_nccl_groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _nccl_group(group: Group) -> Any:
    """Returns the process group that sends rows between GPUs; None without NCCL. Collective.

    It is created once for each default process group of torch.
    """
    if group.device.type != "cuda" or "nccl" not in str(dist.get_backend_config()):
        return None
    world = dist.group.WORLD
    if world not in _nccl_groups:
        nccl = dist.new_group(backend="nccl", timeout=timedelta(seconds=group.timeout))
        # Creates the communicator while no other work is in progress.
        dist.barrier(group=nccl, device_ids=[group.device.index])
        _nccl_groups[world] = nccl
    return _nccl_groups[world]
