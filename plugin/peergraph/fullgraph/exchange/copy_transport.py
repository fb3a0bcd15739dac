"""Rows travel by copies into shared memory of the rank that reads them (MG-GCN 4.3).

On GPUs copy engines move the rows over NVLink and take no multiprocessors. Each rank has, for every
other, two buffers and two counts in its shared memory: chunks that have arrived, and chunks that
were taken. A sender waits for a buffer to be taken, copies a chunk into it, and raises the
reader's count; the reader copies the chunk out, and raises the sender's count. Exchanges in stages
are copied whole to slots that sums read, with two more counts: slots that are free, and rows that
have arrived. All of this is in the order of two streams, one that sends and one that receives: the
host waits for nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from peergraph.errors import PeerLostError
from peergraph.fullgraph.exchange.exchange_queue import Queue, Work, make_queue
from peergraph.fullgraph.exchange.flags import ARRIVED, TAKEN, FlaggedMemory, FlagWaits
from peergraph.fullgraph.exchange.transport import (
    TRANSPORTS,
    DistributedTransport,
    Pending,
    as_bytes,
    refuse_slots,
)
from peergraph.memory import Group
from peergraph.memory.device.launching import Launch
from peergraph.profiling import EXCHANGE, count_bytes, profiled

_SLOTS = 2
# Slots begin at multiples of this.
_SLOT_UNIT = 512


class StageSlots:
    """Slots of all ranks in shared memory. Collective, as is :meth:`close`.

    Sums read rows where they arrive, and rows that are selected are packed there: nothing is copied
    twice, and an exchange takes three launches on each side, whatever its size.

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
        waits = [self._sending.mark(), self._receiving.mark(), self._waits.check]
        return Pending(waits, (*inputs.values(), *outputs.values(), *selected.values()))

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


_logger = logging.getLogger(__name__)

CHUNK_BYTES = 32 << 20
"""Bytes of a buffer."""


class CopyTransport(DistributedTransport):
    """Exchanges rows by copies between GPUs that reach each other's memory, or by host memory.

    Sums over ranks are torch.distributed's. The shared memory is made at the first
    :meth:`all_to_all`, which is collective; where it cannot be made, because a pair of GPUs has no
    peer access or memory is short, and before, rows travel by torch.distributed, too.

    Args:
        group: the ranks.
        chunk_bytes: of a buffer, a multiple of 16; each rank has two for every other rank. None:
            :data:`CHUNK_BYTES`.
    """

    def __init__(self, group: Group, chunk_bytes: int | None = None) -> None:
        super().__init__(group)
        self._chunk_bytes = CHUNK_BYTES if chunk_bytes is None else chunk_bytes
        self._was_opened = False
        self._memory: _Buffers | None = None
        self._slots: StageSlots | None = None
        self._most_bytes = 0

    def all_to_all(
        self, outputs: list[Tensor], inputs: list[Tensor], name: str = "an exchange of rows"
    ) -> None:
        """See :meth:`Transport.all_to_all`."""
        if not self._was_opened:
            self._was_opened = True
            try:
                self._memory = _Buffers(self.group, self._chunk_bytes)
            except (MemoryError, OSError, RuntimeError) as error:
                _logger.info("rows travel by torch.distributed: no memory for copies, %s", error)
                self._memory = None  # on all ranks: the memory is made on all or on none
        super().all_to_all(outputs, inputs, name)

    def reserve(self, num_bytes: int) -> list[Tensor] | None:
        """See :meth:`Transport.reserve`. The slots are outside of torch's allocator."""
        if self._memory is None:
            return None
        if num_bytes > self._most_bytes:
            self._most_bytes = num_bytes
            try:
                if self._slots is not None:
                    self._slots.close()
                    self._slots = None
                memory = self._memory
                self._slots = StageSlots(
                    self.group, memory.waits, memory.sending, memory.receiving, num_bytes
                )
            except PeerLostError:
                raise
            except (MemoryError, OSError, RuntimeError):
                pass  # on all ranks: the memory is made on all or on none
        slots = self._slots
        return None if slots is None or num_bytes > slots.num_bytes else slots.own

    @profiled(EXCHANGE)
    def start(
        self,
        outputs: Mapping[int, Tensor],
        inputs: Mapping[int, Tensor],
        slots: Mapping[int, int] | None = None,
        selected: Mapping[int, Tensor] | None = None,
    ) -> Pending:
        """See :meth:`Transport.start`.

        In step s every rank sends to the rank s before and reads from the rank s after, so that
        no rank serves two at once and no wait depends on itself.
        """
        if self._memory is None:
            return super().start(outputs, inputs, slots, selected)
        count_bytes(EXCHANGE, sum(tensor.nbytes for tensor in outputs.values()))
        if slots is not None and self._slots is not None:
            return self._slots.start(outputs, inputs, slots, selected or {})
        refuse_slots(slots, selected)
        return self._memory.start(outputs, inputs)


class _Buffers:
    """The shared memory of all ranks, and the queues that use it. Collective."""

    def __init__(self, group: Group, chunk_bytes: int) -> None:
        self.group = group
        self._chunk = chunk_bytes
        self.waits = FlagWaits(group)
        num_bytes = (group.world_size - 1) * _SLOTS * chunk_bytes
        self._memory = FlaggedMemory(group, num_bytes, self.waits)
        self._parts = self._memory.parts
        self._sent = [0] * group.world_size
        self._received = [0] * group.world_size
        self.sending, self.receiving = make_queue(group.device), make_queue(group.device)

    def start(self, outputs: Mapping[int, Tensor], inputs: Mapping[int, Tensor]) -> Pending:
        self.waits.check()
        rank, world_size = self.group.rank, self.group.world_size
        self.sending.begin()
        self.receiving.begin()
        for step in range(1, world_size):
            reader, source = (rank - step) % world_size, (rank + step) % world_size
            sent = self._chunks(inputs.get(reader))
            received = self._chunks(outputs.get(source))
            # In turns, so that no wait depends on work behind it where a GPU has one queue for
            # both streams.
            for out_chunk, in_chunk in zip_longest(sent, received):
                if out_chunk is not None:
                    self.sending.run(self._send(reader, out_chunk))
                if in_chunk is not None:
                    self.receiving.run(self._receive(source, in_chunk))
        waits = [self.sending.mark(), self.receiving.mark(), self.waits.check]
        return Pending(waits, (*inputs.values(), *outputs.values()))

    def _chunks(self, tensor: Tensor | None) -> Sequence[Tensor]:
        if tensor is None or tensor.numel() == 0:
            return ()
        return torch.split(as_bytes(tensor), self._chunk)

    def _send(self, reader: int, chunk: Tensor) -> Work:
        number = self._sent[reader]
        self._sent[reader] += 1
        buffer = self._buffer(reader, self.group.rank, number)[: chunk.numel()]

        def work(launch: Launch) -> None:
            if number >= _SLOTS:
                self._memory.wait(reader, TAKEN, number - _SLOTS + 1, launch)
            buffer.copy_(chunk, non_blocking=True)
            self._memory.signal(reader, ARRIVED, number + 1, launch)

        return work

    def _receive(self, source: int, chunk: Tensor) -> Work:
        number = self._received[source]
        self._received[source] += 1
        buffer = self._buffer(self.group.rank, source, number)[: chunk.numel()]

        def work(launch: Launch) -> None:
            self._memory.wait(source, ARRIVED, number + 1, launch)
            chunk.copy_(buffer, non_blocking=True)
            self._memory.signal(source, TAKEN, number + 1, launch)

        return work

    def _buffer(self, reader: int, sender: int, number: int) -> Tensor:
        """The buffer of `reader` that chunk `number` from `sender` comes to."""
        place = (sender - reader - 1) % self.group.world_size
        first = (place * _SLOTS + number % _SLOTS) * self._chunk
        return self._parts[reader][first : first + self._chunk]


TRANSPORTS["copy"] = CopyTransport
