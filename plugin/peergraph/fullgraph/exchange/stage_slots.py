"""Two slots on each rank to which other ranks copy whole stages of rows (MG-GCN 4.3).

Sums read rows where they arrive, and rows that are selected are packed there: nothing is copied
twice, and an exchange takes three launches on each side, whatever its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.fullgraph.exchange.exchange_queue import Queue, QueuedExchange, Work
from peergraph.fullgraph.exchange.flags import FLAG_BYTES, clear_flags
from peergraph.fullgraph.exchange.transport import Pending, as_bytes
from peergraph.memory import Group, SharedRegion
from peergraph.memory.device.launching import Launch

_SLOTS = 2
# Slots begin at multiples of this.
_SLOT_UNIT = 512


class Waits(Protocol):
    """What exchanges of a group share."""

    sending: Queue
    receiving: Queue

    def wait(self, flag: int, value: int, launch: Launch) -> None:
        """Waits in a queue until a count has been reached."""

    def check(self) -> None:
        """Raises PeerLostError where a wait was given up."""


class StageSlots:
    """Slots of all ranks in shared memory. Collective, as is :meth:`close`.

    A rank that reads raises a count of the sender once its slot is free, in the order of its
    current stream; the sender then copies, and raises a count of the reader.

    Args:
        group: the ranks.
        waits: their queues.
        num_bytes: of a slot.
    """

    def __init__(self, group: Group, waits: Waits, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._group, self._waits = group, waits
        self._others = group.world_size - 1
        self._stride = -(-num_bytes // _SLOT_UNIT) * _SLOT_UNIT
        self._flags_at = _SLOTS * self._stride
        size = self._flags_at + 2 * self._others * FLAG_BYTES
        self._region = SharedRegion.create(size, group)
        self._parts = [
            self._region.part(rank, torch.uint8, [size]) for rank in range(group.world_size)
        ]
        mine = self._parts[group.rank]
        self.own = [mine[i * self._stride :][:num_bytes] for i in range(_SLOTS)]
        """This rank's slots."""
        self._sent = [0] * group.world_size
        self._received = [0] * group.world_size
        clear_flags(mine[self._flags_at :], group)

    def start(
        self,
        outputs: Mapping[int, Tensor],
        inputs: Mapping[int, Tensor],
        slots: Mapping[int, int],
        selected: Mapping[int, Tensor],
    ) -> Pending:
        """See :meth:`Transport.start`."""
        waits = self._waits
        waits.check()
        waits.sending.begin()
        waits.receiving.begin()
        sources = [source for source, tensor in outputs.items() if tensor.numel()]
        for source in sources:
            waits.receiving.run(self._free(source))
        for reader, tensor in inputs.items():
            if tensor.numel():
                send = self._send(reader, tensor.detach(), slots[reader], selected.get(reader))
                waits.sending.run(send)
        for source in sources:
            waits.receiving.run(self._receive(source))
        marks = [waits.sending.mark(), waits.receiving.mark()]
        tensors = (*inputs.values(), *outputs.values(), *selected.values())
        return QueuedExchange(marks, waits.check, tensors)

    def close(self) -> None:
        """Frees the memory, once all ranks have done what was queued. Collective."""
        if self._group.device.type == "cuda":
            torch.cuda.synchronize(self._group.device)
        self._group.barrier()
        self.own.clear()
        self._parts.clear()
        self._region.close()

    def _free(self, source: int) -> Work:
        flag = self._flag(source, self._group.rank, of_arrived=False)
        value = _count(self._received[source] + 1)
        return lambda launch: _C.signal_flag(flag, value, launch)

    def _send(self, reader: int, rows: Tensor, slot: int, selected: Tensor | None) -> Work:
        self._sent[reader] += 1
        number, rank = self._sent[reader], self._group.rank
        count = rows.shape[0] if selected is None else selected.shape[0]
        row_shape = rows.shape[1:]
        num_bytes = count * row_shape.numel() * rows.itemsize
        target = self._parts[reader][slot * self._stride :][:num_bytes]
        is_free = self._flag(rank, reader, of_arrived=False)
        arrived = self._flag(reader, rank, of_arrived=True)

        def work(launch: Launch) -> None:
            self._waits.wait(is_free, number, launch)
            if selected is None:
                target.copy_(as_bytes(rows), non_blocking=True)
            else:
                packed = target.view(rows.dtype).view(count, *row_shape)
                torch.index_select(rows, 0, selected, out=packed)
            _C.signal_flag(arrived, _count(number), launch)

        return work

    def _receive(self, source: int) -> Work:
        self._received[source] += 1
        number = self._received[source]
        arrived = self._flag(self._group.rank, source, of_arrived=True)
        return lambda launch: self._waits.wait(arrived, number, launch)

    def _flag(self, owner: int, other: int, *, of_arrived: bool) -> int:
        """Address of a count that `other` raises and `owner` waits for."""
        index = (other - owner - 1) % self._group.world_size + self._others * of_arrived
        return self._region.addresses[owner] + self._flags_at + index * FLAG_BYTES


def _count(number: int) -> int:
    """Counts wrap around at 2^32."""
    return number & 0xFFFFFFFF
