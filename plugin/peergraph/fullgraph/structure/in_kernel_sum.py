"""Sums whose kernel reads rows of other ranks while it sums local edges (MGG 3).

It needs neither buffers nor stages, but reads a remote row for each edge: it pays where few edges
share a remote row. Gradients are partial sums of the halo, which travel back to their owners.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import MESSAGES, Schedule, launch_on
from peergraph.aggregate.ops.source_gradients import divide_by_degrees
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.fullgraph.exchange.halo import HaloPlan
from peergraph.fullgraph.exchange.mapped_rows import MappedRows, RowAddresses
from peergraph.fullgraph.exchange.route import linear
from peergraph.fullgraph.structure.interleaving import Interleaving, tune
from peergraph.memory.device.launching import Buffers
from peergraph.memory.device.stopwatch import Stopwatch

# Columns, dtype, and values of an edge: 0, 1, or 2 for one for each column.
_Key = tuple[int, torch.dtype, int]
# Launches of each setting whose time is taken, after one that is not.
_TIMED_LAUNCHES = 2


class InKernelSums:
    """Sums over the edges of this rank, local and remote ones apart. Made collectively.

    The first sum of each width, dtype and kind of message tunes how the two are interleaved on a
    GPU: in up to :data:`MOST_PROBES` settings it is run some times more. No setting changes a bit
    of the results.

    Args:
        plan: which rows of sources are read.
        matrix: the edges, from extended rows of sources.
        interleaving: to be used; None: tuned.
    """

    def __init__(
        self, plan: HaloPlan, matrix: EdgeMatrix, interleaving: Interleaving | None = None
    ) -> None:
        self.plan = plan
        self.matrix = matrix
        self.local = matrix.take_columns(0, plan.num_local)
        """Edges from local rows of sources."""
        self.remote = matrix.take_columns(plan.num_local, plan.num_extended)
        """Edges from rows of the halo."""
        self.pair_chunks = _count_chunks(self.local, self.remote)
        """Chunks that the kernel of both cuts long rows into."""
        self.rows = MappedRows(plan)
        self.interleaving = interleaving
        """What the next sums use; None: what was or will be tuned."""
        self.tuned: dict[_Key, dict[Interleaving, float]] = {}
        """Seconds of the settings that were tried, by columns, dtype, and values of an edge."""
        self.chosen: dict[_Key, Interleaving] = {}
        """The quickest of them."""

    def __call__(self, x: Tensor, e: Tensor | None, mean: bool) -> Tensor:
        """Returns the sum or mean of messages at this rank's destinations. Collective.

        Args:
            x: [local rows of sources, columns] float32 or float64.
            e: [local edges, columns or a divisor], which needs no gradient, or None.
            mean: divide by the number of edges of each destination.
        """

        def sums(x: Tensor, e: Tensor | None) -> Tensor:
            return self.forward(x.contiguous(), e, mean)

        def gradients(grad: Tensor, e: Tensor | None) -> Tensor:
            grad = divide_by_degrees(self.matrix, grad) if mean else grad.contiguous()
            message = "copy_u" if e is None else "mul"
            partial = self.matrix.transpose().sum_messages(grad, e, message)
            return self.plan.add_to_owners(partial)

        return linear(x, sums, gradients, e)

    def tuning_of(
        self, x: Tensor, e: Tensor | None
    ) -> tuple[Interleaving, dict[Interleaving, float]] | None:
        """Returns the setting for sums of `x` and `e` and the seconds of those that were tried.

        None where sums of this width, dtype and kind of `e` have not been tuned.
        """
        key = _key(self.rows.padded_columns(x), x, e)
        return (self.chosen[key], self.tuned[key]) if key in self.chosen else None

    def forward(self, x: Tensor, e: Tensor | None, mean: bool) -> Tensor:
        """Returns the sums, without autograd."""
        run = self._prepare(x, e, mean)
        run(self._setting(run))
        self.rows.release()
        return _without_padding(run.out, x.shape[1])

    def measure(self, x: Tensor, settings: Iterable[Interleaving]) -> dict[Interleaving, float]:
        """Returns the seconds of each setting of sums of `x` on the slowest rank.

        Collective; synchronises. On the CPU all settings are the same.
        """
        run = self._prepare(x.contiguous(), None, False)
        seconds = {setting: run.seconds(setting) for setting in settings}
        self.rows.release()
        return seconds

    def close(self) -> None:
        """Releases the memory that other ranks read. Collective."""
        self.rows.close()

    def _prepare(self, x: Tensor, e: Tensor | None, mean: bool) -> _Launch:
        width, columns = x.shape[1], self.rows.padded_columns(x)
        if e is not None and e.shape[1] != 1:
            e = e.repeat_interleave(width // e.shape[1], 1)
            e = torch.nn.functional.pad(e, (0, columns - width))
        published = self.rows.publish(x)
        own = x if columns == width else torch.nn.functional.pad(x, (0, columns - width))
        return _Launch(self, _aligned(own), None if e is None else _aligned(e), mean, published)

    def _setting(self, run: _Launch) -> Interleaving:
        """Returns the setting for a launch. Collective where it is tuned."""
        if self.interleaving is not None:
            return self.interleaving
        if run.out.device.type == "cpu":
            return Interleaving()
        key = _key(run.own.shape[1], run.own, run.e)
        if key not in self.chosen:
            row_bytes = run.own.shape[1] * run.own.itemsize
            self.chosen[key], self.tuned[key] = tune(run.seconds, row_bytes)
        return self.chosen[key]


class _Launch:
    """One sum, whose rows have been published; it may run several times."""

    def __init__(
        self,
        sums: InKernelSums,
        own: Tensor,
        e: Tensor | None,
        mean: bool,
        published: RowAddresses,
    ) -> None:
        columns = published.columns
        message = MESSAGES["copy_u" if e is None else "mul"]
        self.own, self.e = own, e
        self.out = own.new_empty(sums.local.num_destinations, columns)
        self._sums, self._mean = sums, mean
        e_columns = 1 if e is None else e.shape[1]
        self._local_operands = _C.Operands(
            message=message, x=self.own, e=self.e, columns=columns, e_columns=e_columns
        )
        self._remote_operands = _C.Operands(
            message=message,
            addresses=published.addresses,
            address_bits=published.bits,
            e=self.e,
            columns=columns,
            e_columns=e_columns,
            leases=published.leases,
        )

    def __call__(self, interleaving: Interleaving) -> None:
        """Writes the sums to `out`."""
        if interleaving.distance == 0:
            self._run_apart()
            return
        local = replace(self._sums.local.tensors, max_chunks=self._sums.pair_chunks)
        _C.interleaved_spmm(
            local.native(),
            self._local_operands,
            self._sums.remote.tensors.native(),
            self._remote_operands,
            mean=self._mean,
            interleaving=interleaving.native(),
            out=self.out,
            launch=launch_on(self.out.device),
            allocate=Buffers(self.out.device),
        )

    def _run_apart(self) -> None:
        """Sums local edges, then adds the sums of remote edges: the same additions."""
        for matrix, operands, accumulate in (
            (self._sums.local, self._local_operands, False),
            (self._sums.remote, self._remote_operands, True),
        ):
            _C.spmm(
                matrix.tensors.native(),
                operands,
                mean=False,
                accumulate=accumulate,
                out=self.out,
                launch=launch_on(self.out.device),
                allocate=Buffers(self.out.device),
            )
        if self._mean:
            degrees = self._sums.matrix.in_degrees().clamp(min=1).to(self.out.dtype)
            self.out.div_(degrees.unsqueeze(1))

    def seconds(self, interleaving: Interleaving) -> float:
        """Returns the time of a launch on the slowest rank while all do the same. Collective."""
        group = self._sums.plan.row_layout.processes
        group.synchronize()
        group.barrier()
        # The host enqueues the launches that are timed while the GPU runs this one.
        self(interleaving)
        watch = Stopwatch(group.device)
        with watch.running():
            for _ in range(_TIMED_LAUNCHES):
                self(interleaving)
        return float(max(group.all_gather(watch.seconds()))) / _TIMED_LAUNCHES


def _without_padding(rows: Tensor, width: int) -> Tensor:
    return rows if rows.shape[1] == width else rows[:, :width].contiguous()


def _aligned(rows: Tensor) -> Tensor:
    """Returns the rows in memory that begins at a multiple of 16 bytes, as vectors need it."""
    rows = rows.contiguous()
    return rows if rows.data_ptr() % 16 == 0 else rows.clone()


def _key(columns: int, x: Tensor, e: Tensor | None) -> _Key:
    return columns, x.dtype, 0 if e is None else min(e.shape[1], 2)


def _count_chunks(local: EdgeMatrix, remote: EdgeMatrix) -> int:
    """Returns how many chunks a GPU cuts long rows into, by either part; 0 on the CPU."""
    if local.device.type == "cpu":
        return 0
    schedule = local.schedule or Schedule()
    degrees = [local.in_degrees(), remote.in_degrees()]
    is_long = [of > schedule.long_row for of in degrees]
    cut = ((of + (schedule.chunk - 1)) // schedule.chunk for of in degrees)
    # Of a row that is cut the other part is one chunk.
    chunks = [
        torch.where(long, n, of > 0) for long, n, of in zip(is_long, cut, degrees, strict=True)
    ]
    return int(((chunks[0] + chunks[1]) * (is_long[0] | is_long[1])).sum())
