"""How plain tensors travel between ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from peergraph.environment import read_variable
from peergraph.errors import PeerLostError
from peergraph.fullgraph.layout.ranks import Ranks
from peergraph.memory import Group
from peergraph.profiling import ALL_REDUCE, EXCHANGE, count_bytes, profiled

_logger = logging.getLogger(__name__)

ReduceOp = Literal["sum", "max", "min", "prod"]

_REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "prod": dist.ReduceOp.PRODUCT,
}
_HALF = (torch.float16, torch.bfloat16)


Wait = Callable[[], object]
"""Waits for what was started: on a GPU makes the current stream wait, else this thread."""


class Pending:
    """An exchange that has been started.

    Args:
        waits: for its parts, called in their order.
        tensors: that it uses.
    """

    def __init__(self, waits: Sequence[Wait], tensors: Sequence[Tensor]) -> None:
        self._waits, self._tensors = waits, tensors

    @profiled(EXCHANGE)
    def wait(self) -> None:
        """Waits for the exchange: on a GPU makes the current stream wait, else this thread.

        Raises PeerLostError where it is known to have been given up.
        """
        for wait in self._waits:
            wait()
        self._waits, self._tensors = (), ()


class Reductions(Protocol):
    """Reductions of plain tensors over ranks: a :class:`Transport`, or those of a chunk of rows."""

    one_part_a_rank: bool
    """Whether a reduction gets one tensor from each rank, not one from each chunk of a rank."""

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Tensor:
        """See :meth:`Transport.all_reduce`."""
        ...


class Transport:
    """Collectives over plain tensors on the group's device. This one serves a group of one rank.

    All methods are collective, and none is differentiable. Where a rank is gone they raise
    PeerLostError, and CollectiveMismatchError where a rank is in another exchange or collective.
    """

    one_part_a_rank = True

    def __init__(self, group: Group) -> None:
        self.group = group
        self.network_bytes = 0
        """Bytes of rows that this rank has sent to ranks of other machines; without reductions."""

    @staticmethod
    def of(group: Ranks) -> Transport:
        """Returns the transport of a group's ranks, always the same object. Not collective.

        Several ranks exchange rows by copies between GPUs (:class:`CopyTransport`) and, on CPUs
        and where GPUs do not reach each other's memory, by torch.distributed, as ranks of several
        machines do. The environment variable PEERGRAPH_TRANSPORT, ``copy`` or ``torch``, chooses
        one of them for the ranks of a machine.
        """
        if not isinstance(group, Group):
            group.all_gather(None)  # Ranks of a chunk refuse: it has no rows of others.
        assert isinstance(group, Group)
        kind = _kind_for(group)
        key = kind, group.device, group.timeout
        if key not in group.shared:
            group.shared[key] = kind(group)
            _logger.info("rank %d exchanges rows by %s", group.rank, kind.__name__)
        transport: Transport = group.shared[key]
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

    def announce(self, name: str, rows: Tensor) -> None:
        """Tells the other ranks which exchange this one joins; before each :meth:`start`, or before
        several that belong together. The other methods do it themselves.

        Args:
            name: the exchange, for errors; equal on all ranks.
            rows: [any, *features] some rows, whose dtype and features are equal on all ranks.
        """

    def all_to_all(
        self, outputs: list[Tensor], inputs: list[Tensor], name: str = "an exchange of rows"
    ) -> None:
        """Sends `inputs[r]` to rank r and writes the tensor from rank r into `outputs[r]`.

        Args:
            outputs, inputs: contiguous tensors, one for each rank, which may be empty.
            name: see :meth:`announce`.
        """
        outputs[0].copy_(inputs[0])

    def exchange_rows(
        self,
        rows: Tensor,
        sent: Sequence[int],
        received: Sequence[int],
        name: str = "an exchange of rows",
    ) -> Tensor:
        """Sends rows to their ranks; returns those that come, in the order of the ranks.

        Args:
            rows: [sum(sent), *features], contiguous: those for rank 0, then those for rank 1, ...
            sent, received: how many rows go to each rank, and come from it.
            name: see :meth:`announce`.
        """
        result = rows.new_empty((sum(received), *rows.shape[1:]))
        self.all_to_all(split_rows(result, received), split_rows(rows, sent), name)
        return result

    def reserve(self, num_bytes: int) -> list[Tensor] | None:
        """Returns slots of this rank, to which other ranks copy without a detour, or None.

        Collective where there were no such slots of as many bytes. A transport has one set, for
        one exchange in stages after the other: an exchange to a slot begins once the current stream
        has done the work before, on the rank that reads as on the one that sends.

        Args:
            num_bytes: of the largest exchange to a slot, of all ranks.

        Returns:
            Two uint8 tensors of at least `num_bytes`; None on all ranks: there are none.
        """
        return None

    def start(
        self,
        outputs: Mapping[int, Tensor],
        inputs: Mapping[int, Tensor],
        slots: Mapping[int, int] | None = None,
        selected: Mapping[int, Tensor] | None = None,
    ) -> Pending:
        """Starts to send `inputs[r]` to rank r and to write the tensor from rank r to `outputs[r]`,
        after :meth:`announce`.

        On a GPU the exchange begins once the current stream has done the work that was enqueued
        before, and runs on another stream. Until the exchange is waited for, `inputs` must not
        change and `outputs` must not be read; the returned object keeps both alive.

        Args:
            outputs, inputs: contiguous tensors by rank, without this rank; empty ones do not
                travel.
            slots: where all ranks have outputs at the beginning of slots (:meth:`reserve`): by rank
                that gets an input, the number of the slot it goes to; else None.
            selected: with slots only: by rank that gets an input, int64 numbers of the rows of the
                input that are sent, which are packed where they are sent to; None: all rows.

        Raises:
            ValueError: slots, or selected rows, where there are no slots.
        """
        refuse_slots(slots, selected)
        return Pending((), ())

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """Overwrites `tensor`, which is contiguous, with that of rank `src`."""


def reductions_of(group: Ranks) -> Reductions:
    """Returns the reductions over a group's ranks, always the same object. Not collective."""
    registered: Reductions | None = group.shared.get(Reductions)
    return Transport.of(group) if registered is None else registered


class DistributedTransport(Transport):
    """Collectives of the default process group of torch.distributed: NCCL on GPUs, else Gloo.

    The ranks of one machine of several exchange rows, and have no other collectives: the process
    group is that of all machines (:class:`WorldGroup`).
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        machines, self._torch_ranks = group.machines, group.torch_ranks
        self._is_remote = [machines.machine_of(r) != machines.index for r in self._torch_ranks]
        self._is_part = len(self._torch_ranks) < machines.world_size
        # NCCL connects at a first call that all ranks make; some may have no rows to send.
        self._is_connected = group.device.type != "cuda" or self._is_part

    def connect(self) -> None:
        """Connects the ranks, before some of them exchange rows. Collective."""
        if not self._is_connected:
            self.all_reduce(torch.zeros(1, device=self.group.device))
            self._is_connected = True

    def announce(self, name: str, rows: Tensor) -> None:
        """See :meth:`Transport.announce`."""
        self._announce(name, rows.dtype, rows.shape[1:])

    def _announce(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> None:
        self.group.announce(f"{name}, {str(dtype).removeprefix('torch.')} {list(shape)}")

    def _run(self, call: Callable[..., dist.Work | None]) -> None:
        """Runs a collective of torch; on GPUs on the current stream."""
        with _naming_the_lost(self.group):
            work = call(async_op=self.group.device.type != "cuda")
        if work is not None:
            self._wait(work)

    def _wait(self, work: dist.Work) -> None:
        """Waits for a call: this thread for at most the group's timeout, or on GPUs the stream."""
        with _naming_the_lost(self.group):
            if self.group.device.type == "cuda":
                work.wait()
            else:
                work.wait(timedelta(seconds=self.group.timeout))

    @profiled(ALL_REDUCE)
    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Tensor:
        """See :meth:`Transport.all_reduce`."""
        self._refuse_part()
        if tensor.dtype in _HALF:
            return self.all_reduce(tensor.float(), op).to(tensor.dtype)
        if tensor.dtype == torch.bool:
            logical: ReduceOp = "max" if op in ("sum", "max") else "min"
            return self.all_reduce(tensor.to(torch.uint8), logical).bool()
        if op in ("max", "min") and tensor.is_floating_point():
            return self._reduce_with_nan(tensor, op)
        return self._reduce(tensor, op)

    def _reduce_with_nan(self, tensor: Tensor, op: ReduceOp) -> Tensor:
        """Returns extrema that are NaN where a value is, as torch's are; Gloo and NCCL lose NaN."""
        is_nan, sign = tensor.isnan(), 1.0 if op == "max" else -1.0
        values = torch.where(is_nan, -sign * torch.inf, tensor)
        values, marks = self._reduce(torch.stack([values, sign * is_nan.to(tensor.dtype)]), op)
        return torch.where(marks != 0, torch.nan, values)

    def _reduce(self, tensor: Tensor, op: ReduceOp) -> Tensor:
        tensor = tensor.contiguous()
        self._announce(f"a {op} over all ranks", tensor.dtype, tensor.shape)
        self._run(partial(dist.all_reduce, tensor, _REDUCE_OPS[op]))
        return tensor

    def all_gather_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """See :meth:`Transport.all_gather_rows`."""
        row_shape = rows.shape[1:]
        result = rows.new_empty((sum(counts), *row_shape))
        rows = rows.contiguous()
        outputs = split_rows(result, counts)
        self.all_to_all(outputs, [rows] * len(counts), "all rows on all ranks")
        return result

    @profiled(EXCHANGE)
    def all_to_all(
        self, outputs: list[Tensor], inputs: list[Tensor], name: str = "an exchange of rows"
    ) -> None:
        """See :meth:`Transport.all_to_all`."""
        rank, world_size = self.group.rank, self.group.world_size
        self.connect()
        self.announce(name, inputs[rank])
        outputs[rank].copy_(inputs[rank])
        peers = [(rank + step) % world_size for step in range(1, world_size)]
        self.start({r: outputs[r] for r in reversed(peers)}, {r: inputs[r] for r in peers}).wait()

    @profiled(EXCHANGE)
    def start(
        self,
        outputs: Mapping[int, Tensor],
        inputs: Mapping[int, Tensor],
        slots: Mapping[int, int] | None = None,
        selected: Mapping[int, Tensor] | None = None,
    ) -> Pending:
        """See :meth:`Transport.start`; there are no slots."""
        refuse_slots(slots, selected)
        self.network_bytes += sum(
            tensor.nbytes for peer, tensor in inputs.items() if self._is_remote[peer]
        )
        calls = [
            dist.P2POp(kind, as_bytes(tensor), self._torch_ranks[peer])
            for kind, tensors in ((dist.isend, inputs), (dist.irecv, outputs))
            for peer, tensor in tensors.items()
            if tensor.numel()
        ]
        count_bytes(EXCHANGE, sum(tensor.nbytes for tensor in outputs.values()))
        works: list[dist.Work] = []
        if calls:
            with _naming_the_lost(self.group):
                works = dist.batch_isend_irecv(calls)
        waits = [partial(self._wait, work) for work in works]
        return Pending(waits, (*inputs.values(), *outputs.values()))

    def broadcast(self, tensor: Tensor, src: int = 0) -> None:
        """See :meth:`Transport.broadcast`."""
        self._refuse_part()
        if tensor.numel():
            self._announce(f"a broadcast from rank {src}", tensor.dtype, tensor.shape)
            self._run(partial(dist.broadcast, as_bytes(tensor), src))

    def _refuse_part(self) -> None:
        if self._is_part:
            raise RuntimeError(
                "ranks of one machine of several have no process group of their own: reduce over "
                "the ranks of all machines (WorldGroup)"
            )


def _kind_for(group: Group) -> type[Transport]:
    if group.world_size == 1:
        return Transport
    if group.node_group is not group:
        return DistributedTransport
    default = TRANSPORTS["copy" if group.device.type == "cuda" else "torch"]
    return read_variable("PEERGRAPH_TRANSPORT", TRANSPORTS.__getitem__, "torch or copy", default)


TRANSPORTS: dict[str, type[Transport]] = {"torch": DistributedTransport}
"""Transports of the ranks of a machine, by the value of PEERGRAPH_TRANSPORT; others are added."""


def split_rows(rows: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Returns consecutive rows by rank, as views."""
    return list(torch.split(rows, list(counts)))


def refuse_slots(slots: Mapping[int, int] | None, selected: Mapping[int, Tensor] | None) -> None:
    """Raises ValueError for arguments of :meth:`Transport.start` that need slots."""
    for name, argument in (("slots", slots), ("selected", selected)):
        if argument is not None:
            raise ValueError(f"{name} is for transports with slots: reserve() returned none")


@contextmanager
def _naming_the_lost(group: Group) -> Iterator[None]:
    """Raises PeerLostError in place of an error of torch, where a rank is gone."""
    try:
        yield
    except PeerLostError:
        raise
    except RuntimeError:
        group.all_gather(None)  # Raises PeerLostError, which names the rank.
        raise


def as_bytes(tensor: Tensor) -> Tensor:
    """Returns the bytes of a contiguous tensor, as a view."""
    if not tensor.numel():
        return tensor.new_empty(0)
    # A contiguous tensor of one element may have any stride, which `view` refuses.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
