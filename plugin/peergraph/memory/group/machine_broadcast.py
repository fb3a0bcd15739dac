"""Sends tensors of one machine to other machines, over the process group's network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from peergraph.memory.group.group import Group

T = TypeVar("T")

_PIECE_BYTES = 64 << 20
_CPU = torch.device("cpu")


class MachineBroadcast:
    """Sends from one rank to the first ranks of some machines, over Gloo.

    Every method is collective over these ranks only. If the sender cannot make its data, it raises
    its error, and the receivers raise RuntimeError.
    """

    def __init__(self, group: Group, name: str, sender: int, receivers: Sequence[int]) -> None:
        """
        Args:
            group: the ranks of this machine.
            name: a name that no other broadcast between these machines has.
            sender: the rank, in torch.distributed, that has the data.
            receivers: the ranks, in torch.distributed, that receive the data.
        """
        self._sender = sender
        self.receivers = tuple(receivers)
        self._is_sender = group.machines.rank == sender
        self._gloo = connect(group, f"broadcast/{name}", [sender, *receivers])

    def tensor(
        self, make: Callable[[], Tensor], shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        """Returns the sender's tensor, on the CPU.

        Args:
            make: makes the tensor; called by the sender only.
            shape, dtype: the shape and dtype of the tensor.
        """
        values = self._on_sender(make)
        if values is None:
            values = torch.empty(tuple(shape), dtype=dtype, device=_CPU)
        values = values.detach().to(_CPU).contiguous()
        flat = values.view(-1).view(torch.uint8) if values.numel() else values.new_empty(0)
        for piece in torch.split(flat, _PIECE_BYTES):
            if piece.numel():
                self._broadcast(piece)
        return values

    def scatter(
        self, make: Callable[[], Sequence[Tensor]], shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        """Sends a different tensor to each receiver, and returns this rank's tensor, on the CPU.

        Args:
            make: makes the tensor of the sender, then the tensor of each receiver, in order; called
                by the sender only.
            shape, dtype: the shape and dtype of this rank's tensor.
        """
        tensors = self._on_sender(make)
        if tensors is None:
            values = torch.empty(tuple(shape), dtype=dtype, device=_CPU)
            if values.numel():
                self._gloo.recv([values.view(-1).view(torch.uint8)], 0, 0).wait()
            return values
        parts = [tensor.detach().to(_CPU).contiguous() for tensor in tensors]
        sends = [
            self._gloo.send([part.view(-1).view(torch.uint8)], receiver + 1, 0)
            for receiver, part in enumerate(parts[1:])
            if part.numel()
        ]
        for work in sends:
            work.wait()
        return parts[0]

    def bytes(self, make: Callable[[], bytes]) -> bytes:
        """Returns the sender's bytes."""
        data = self._on_sender(lambda: torch.frombuffer(bytearray(make()), dtype=torch.uint8))
        size = torch.tensor([0 if data is None else data.numel()], device="cpu")
        self._broadcast(size)
        return self.tensor(lambda: data, (int(size),), torch.uint8).numpy().tobytes()  # type: ignore[arg-type, return-value]

    def close(self) -> None:
        """Closes the connections. Other ranks that wait for this rank get an error."""
        self._gloo = None

    def _broadcast(self, tensor: Tensor) -> None:
        self._gloo.broadcast(tensor, 0).wait()

    def _on_sender(self, make: Callable[[], T]) -> T | None:
        """Returns the result of `make` on the sender, None on receivers. If `make` fails, all ranks
        raise an error.
        """
        has_failed = torch.zeros(1, dtype=torch.int64, device="cpu")
        result: T | None = None
        try:
            if self._is_sender:
                result = make()
        except Exception:
            self._broadcast(has_failed.fill_(1))
            raise
        self._broadcast(has_failed)
        if int(has_failed):
            raise RuntimeError(f"rank {self._sender} could not send its graph: see its error")
        return result


def connect(group: Group, name: str, ranks: Sequence[int]) -> Any:
    """Returns a process group of Gloo. Collective over its ranks.

    Args:
        group: the ranks of this machine.
        name: a name that no other process group has.
        ranks: in torch.distributed, this one among them.
    """
    # It is not created by torch.distributed, which names a group by its ranks, so that a second
    # group of the same ranks finds the addresses of the first.
    gloo: Any = dist.ProcessGroupGloo(
        group.machines.substore(name),
        ranks.index(group.machines.rank),
        len(ranks),
        timedelta(seconds=group.timeout),
    )
    # Gloo fails on a rank that is still connecting when another one, already connected, ends.
    gloo.allreduce([torch.zeros(1, device="cpu")]).wait()
    return gloo
