"""Two slots on each rank to which other ranks copy whole stages of rows (MG-GCN 4.3).

Sums read rows where they arrive, and rows that are selected are packed there: nothing is copied
twice, and an exchange takes three launches on each side, whatever its size.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.exchange_queue import Queue, QueuedExchange, Work
from peergraph.fullgraph.exchange.flags import ARRIVED, TAKEN, FlaggedMemory, FlagWaits
from peergraph.fullgraph.exchange.transport import Pending, as_bytes
from peergraph.memory import Group
from peergraph.memory.device.launching import Launch

_SLOTS = 2
# Slots begin at multiples of this.
_SLOT_UNIT = 512


class StageSlots:
    """Slots of all ranks in shared memory. Collective, as is :meth:`close`.

    A rank that reads raises a count of the sender once its slot is free, in the order of its
    current stream; the sender then copies, and raises a count of the reader.

    Args:
        group: the ranks.
        waits: for their counts.
        sending, receiving: queues of the exchanges.
        num_bytes: of a slot.
    """

    def __init__(
        self, group: Group, waits: FlagWaits, sending: Queue, receiving: Queue, num_bytes: int
    ) -> None:
        self.num_bytes = num_bytes
        self._group, self._waits = group, waits
        self._sending, self._receiving = sending, receiving
        self._stride = -(-num_bytes // _SLOT_UNIT) * _SLOT_UNIT
        self._memory = FlaggedMemory(group, _SLOTS * self._stride, waits)
        mine = self._memory.parts[group.rank]
        self.own = [mine[i * self._stride :][:num_bytes] for i in range(_SLOTS)]
        """This rank's slots."""
        self._sent = [0] * group.world_size
        self._received = [0] * group.world_size

    def start(
        self,
        outputs: Mapping[int, Tensor],
        inputs: Mapping[int, Tensor],
        slots: Mapping[int, int],
        selected: Mapping[int, Tensor],
    ) -> Pending:
        """See :meth:`Transport.start`."""
        self._waits.check()
        self._sending.begin()
        self._receiving.begin()
        sources = [source for source, tensor in outputs.items() if tensor.numel()]
        for source in sources:
            self._receiving.run(self._free(source))
        for reader, tensor in inputs.items():
            if tensor.numel():
                send = self._send(reader, tensor.detach(), slots[reader], selected.get(reader))
                self._sending.run(send)
        for source in sources:
            self._receiving.run(self._receive(source))
        marks = [self._sending.mark(), self._receiving.mark()]
        tensors = (*inputs.values(), *outputs.values(), *selected.values())
        return QueuedExchange(marks, self._waits.check, tensors)

    def close(self) -> None:
        """Frees the memory, once all ranks have done what was queued. Collective."""
        self._group.barrier()
        self.own.clear()
        self._memory.close()

    def _free(self, source: int) -> Work:
        number = self._received[source] + 1
        return lambda launch: self._memory.signal(source, TAKEN, number, launch)

    def _send(self, reader: int, rows: Tensor, slot: int, selected: Tensor | None) -> Work:
        self._sent[reader] += 1
        number = self._sent[reader]
        count = rows.shape[0] if selected is None else selected.shape[0]
        row_shape = rows.shape[1:]
        num_bytes = count * row_shape.numel() * rows.itemsize
        target = self._memory.parts[reader][slot * self._stride :][:num_bytes]

        def work(launch: Launch) -> None:
            self._memory.wait(reader, TAKEN, number, launch)
            if selected is None:
                target.copy_(as_bytes(rows), non_blocking=True)
            else:
                packed = target.view(rows.dtype).view(count, *row_shape)
                torch.index_select(rows, 0, selected, out=packed)
            self._memory.signal(reader, ARRIVED, number, launch)

        return work

    def _receive(self, source: int) -> Work:
        self._received[source] += 1
        number = self._received[source]
        return lambda launch: self._memory.wait(source, ARRIVED, number, launch)
