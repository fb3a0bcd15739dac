"""Sums over local and remote sources, of which the remote ones lie somewhere else in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import MESSAGES, Schedule, launch_on
from peergraph.memory.device.launching import Buffers
from tests.aggregate.graphs import Graph


@dataclass
class SplitSources:
    """A graph whose first `num_local` sources are local; rows of the others lie in reverse order.

    Args:
        graph: all edges.
        num_local: sources.
        schedule: which rows a GPU cuts in chunks.
    """

    graph: Graph
    num_local: int
    schedule: Schedule = field(default_factory=Schedule)

    def sums(
        self, x: Tensor, e: Tensor | None, mean: bool, interleaving: _C.Interleaving | None
    ) -> Tensor:
        """Returns the sums of `x` [sources, columns], times `e` [edges, 1 or columns] or None.

        Without an interleaving by two kernels, of which the second adds to the first one's sums,
        and which know no mean.
        """
        matrix = self.graph.csc()
        matrix.schedule = self.schedule
        local = matrix.take_columns(0, self.num_local)
        remote = matrix.take_columns(self.num_local, self.graph.num_sources)
        elsewhere = x[self.num_local :].flip(0).contiguous()
        row_bytes = x.shape[1] * x.itemsize
        places = torch.arange(elsewhere.shape[0], device=x.device).flip(0)
        addresses = elsewhere.data_ptr() + places * row_bytes
        out = x.new_empty(local.num_destinations, x.shape[1])
        columns, e_columns = x.shape[1], 1 if e is None else e.shape[1]
        message = MESSAGES["copy_u" if e is None else "mul"]
        own = x[: self.num_local].contiguous()
        of_local = _C.Operands(message=message, x=own, e=e, columns=columns, e_columns=e_columns)
        of_remote = _C.Operands(
            message=message,
            addresses=addresses,
            address_bits=elsewhere.data_ptr() | row_bytes,
            e=e,
            columns=columns,
            e_columns=e_columns,
            leases=[],
        )
        launch, allocate = launch_on(x.device), Buffers(x.device)
        if interleaving is None:
            for part, operands, accumulate in ((local, of_local, False), (remote, of_remote, True)):
                part.max_chunks = self._bound() if x.is_cuda else 0
                tensors = part.tensors.native()
                _C.spmm(tensors, operands, mean=False, accumulate=accumulate, out=out,
                        launch=launch, allocate=allocate)  # fmt: skip
        else:
            local.max_chunks = self._bound() if x.is_cuda else 0
            _C.interleaved_spmm(
                local.tensors.native(),
                of_local,
                remote.tensors.native(),
                of_remote,
                mean=mean,
                interleaving=interleaving,
                out=out,
                launch=launch,
                allocate=allocate,
            )
        # The operands must outlive the kernel.
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        return out

    def _bound(self) -> int:
        edges = self.graph.num_edges
        return 0 if edges <= self.schedule.long_row else 2 * (edges // self.schedule.chunk + 2) + 64
