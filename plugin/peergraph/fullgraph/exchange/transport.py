"""How plain tensors travel between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from peergraph.memory import Group

ReduceOp = Literal["sum", "max", "min", "prod"]

_REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "prod": dist.ReduceOp.PRODUCT,
}
_HALF = (torch.float16, torch.bfloat16)
_transports: WeakKeyDictionary[Group, Transport] = WeakKeyDictionary()


class Transport:
    """Collectives over plain tensors on the group's device. This one serves a group of one rank.

    All methods are collective, and none is differentiable.
    """

    def __init__(self, group: Group) -> None:
        self.group = group

    @staticmethod
    def of(group: Group) -> Transport:
        """Returns the transport of a group, always the same object. Not collective."""
        transport = _transports.get(group)
        if transport is None:
            kind = Transport if group.world_size == 1 else DistributedTransport
            transport = _transports[group] = kind(group)
        return transport

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Tensor:
        """Returns the element-wise sum, maximum, ... over all ranks, equal on all ranks.

        Half types are reduced in float32 and bool as logical or (sum, max) or and (min, prod).

        Args:
            tensor: of equal shape and dtype on all ranks; its memory may be overwritten.
        """
        return tensor

    def all_gather_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Returns the rows of all ranks, concatenated in rank order.

        Args:
            rows: [counts[rank], ...].
            counts: rows by rank.
        """
        return rows

    def all_to_all(self, outputs: list[Tensor], inputs: list[Tensor]) -> None:
        """Sends `inputs[r]` to rank r and writes the tensor from rank r into `outputs[r]`.

        Args:
            outputs, inputs: contiguous tensors, one for each rank, which may be empty.
        """
        outputs[0].copy_(inputs[0])

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """Overwrites `tensor`, which is contiguous, with that of rank `src`."""


class DistributedTransport(Transport):
    """Collectives of the default process group of torch.distributed: NCCL on GPUs, else Gloo."""

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Tensor:
        """See :meth:`Transport.all_reduce`."""
        if tensor.dtype in _HALF:
            return self.all_reduce(tensor.float(), op).to(tensor.dtype)
        if tensor.dtype == torch.bool:
            logical: ReduceOp = "max" if op in ("sum", "max") else "min"
            return self.all_reduce(tensor.to(torch.uint8), logical).bool()
        tensor = tensor.contiguous()
        dist.all_reduce(tensor, _REDUCE_OPS[op])
        return tensor

    def all_gather_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """See :meth:`Transport.all_gather_rows`."""
        row_shape = rows.shape[1:]
        result = rows.new_empty((sum(counts), *row_shape))
        rows = rows.contiguous()
        outputs = list(torch.split(result, list(counts)))
        self.all_to_all(outputs, [rows] * len(counts))
        return result

    def all_to_all(self, outputs: list[Tensor], inputs: list[Tensor]) -> None:
        """See :meth:`Transport.all_to_all`."""
        rank, world_size = self.group.rank, self.group.world_size
        outputs[rank].copy_(inputs[rank])
        received = [_as_bytes(tensor) for tensor in outputs]
        sent = [_as_bytes(tensor) for tensor in inputs]
        calls = []
        for step in range(1, world_size):
            peer, source = (rank + step) % world_size, (rank - step) % world_size
            if sent[peer].numel():
                calls.append(dist.P2POp(dist.isend, sent[peer], peer))
            if received[source].numel():
                calls.append(dist.P2POp(dist.irecv, received[source], source))
        if calls:
            for work in dist.batch_isend_irecv(calls):
                work.wait()

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """See :meth:`Transport.broadcast`."""
        if tensor.numel():
            dist.broadcast(_as_bytes(tensor), src)


def _as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor, as a view."""
    return tensor.view(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0)
