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

import peergraph._C as _C
from peergraph.errors import PeerLostError
from peergraph.fullgraph.exchange.exchange_queue import QueuedExchange, Work, make_queue
from peergraph.fullgraph.exchange.flags import FLAG_BYTES, clear_flags
from peergraph.fullgraph.exchange.stage_slots import StageSlots
from peergraph.fullgraph.exchange.transport import (
    TRANSPORTS,
    DistributedTransport,
    Pending,
    as_bytes,
    refuse_slots,
)
from peergraph.memory import Group, SharedRegion
from peergraph.memory.device.launching import Launch
from peergraph.memory.group.device_waits import register_wait
from peergraph.profiling import EXCHANGE, count_bytes, profiled

_logger = logging.getLogger(__name__)

CHUNK_BYTES = 32 << 20
"""Bytes of a buffer."""

_SLOTS = 2


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
                self._slots = StageSlots(self.group, self._memory, num_bytes)
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
        self._others = group.world_size - 1
        self._flags_at = self._others * _SLOTS * chunk_bytes
        size = self._flags_at + 2 * self._others * FLAG_BYTES
        self._region = SharedRegion.create(size, group)
        sizes = self._region.sizes
        self._parts = [
            self._region.part(rank, torch.uint8, [sizes[rank]]) for rank in range(group.world_size)
        ]
        on_gpu = group.device.type == "cuda"
        self._given_up = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=on_gpu)
        register_wait(self._given_up)
        self._sent = [0] * group.world_size
        self._received = [0] * group.world_size
        self.sending, self.receiving = make_queue(group.device), make_queue(group.device)
        clear_flags(self._parts[group.rank][self._flags_at :], group)

    def start(self, outputs: Mapping[int, Tensor], inputs: Mapping[int, Tensor]) -> Pending:
        self.check()
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
        marks = [self.sending.mark(), self.receiving.mark()]
        return QueuedExchange(marks, self.check, (*inputs.values(), *outputs.values()))

    def _chunks(self, tensor: Tensor | None) -> Sequence[Tensor]:
        if tensor is None or tensor.numel() == 0:
            return ()
        return torch.split(as_bytes(tensor), self._chunk)

    def _send(self, reader: int, chunk: Tensor) -> Work:
        number = self._sent[reader]
        self._sent[reader] += 1
        rank = self.group.rank
        buffer = self._buffer(reader, rank, number)[: chunk.numel()]
        flag_of_reads = self._flag(rank, reader, of_taken=True)
        arrived = self._flag(reader, rank, of_taken=False)

        def work(launch: Launch) -> None:
            if number >= _SLOTS:
                self.wait(flag_of_reads, number - _SLOTS + 1, launch)
            buffer.copy_(chunk, non_blocking=True)
            _C.signal_flag(arrived, _count(number + 1), launch)

        return work

    def _receive(self, source: int, chunk: Tensor) -> Work:
        number = self._received[source]
        self._received[source] += 1
        rank = self.group.rank
        buffer = self._buffer(rank, source, number)[: chunk.numel()]
        arrived = self._flag(rank, source, of_taken=False)
        flag_of_reads = self._flag(source, rank, of_taken=True)

        def work(launch: Launch) -> None:
            self.wait(arrived, number + 1, launch)
            chunk.copy_(buffer, non_blocking=True)
            _C.signal_flag(flag_of_reads, _count(number + 1), launch)

        return work

    def wait(self, flag: int, value: int, launch: Launch) -> None:
        given_up = self._given_up.data_ptr()
        _C.wait_for_flag(flag, _count(value), self.group.timeout, given_up, launch)

    def _index(self, owner: int, other: int) -> int:
        """Which of the places that `owner` has for other ranks is that of `other`."""
        return (other - owner - 1) % self.group.world_size

    def _buffer(self, reader: int, sender: int, number: int) -> Tensor:
        """The buffer of `reader` that chunk `number` from `sender` comes to."""
        first = (self._index(reader, sender) * _SLOTS + number % _SLOTS) * self._chunk
        return self._parts[reader][first : first + self._chunk]

    def _flag(self, owner: int, other: int, *, of_taken: bool) -> int:
        """Address of a count that `other` raises and `owner` waits for."""
        index = self._index(owner, other) + self._others * of_taken
        return self._region.addresses[owner] + self._flags_at + index * FLAG_BYTES

    def check(self) -> None:
        if int(self._given_up[0]):
            self.group.all_gather(None)  # Raises PeerLostError, which names the rank.
            raise PeerLostError(
                "an exchange of rows was given up: a rank was lost, or took no part within "
                f"{self.group.timeout:g} s"
            )


def _count(number: int) -> int:
    """Counts wrap around at 2^32."""
    return number & 0xFFFFFFFF


TRANSPORTS["copy"] = CopyTransport
