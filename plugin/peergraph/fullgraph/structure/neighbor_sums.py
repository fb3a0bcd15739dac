"""Reductions of sources' rows at this rank's destinations, by the exchange that serves."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.aggregate.ops.operands import align, autocast, columns
from peergraph.aggregate.ops.source_gradients import accumulates_in
from peergraph.fullgraph.exchange.block_stages import BlockStages
from peergraph.fullgraph.exchange.halo import HaloPlan
from peergraph.fullgraph.exchange.local_operands import local_operands
from peergraph.fullgraph.exchange.mode_cost import MODES
from peergraph.fullgraph.structure.in_kernel_sum import InKernelSums
from peergraph.fullgraph.structure.staged_sum import SourceBlocks, staged_sum

# Whole blocks need no packing, which costs about as much as this share of their rows' copies.
_PACKING = 0.17


class NeighborSums:
    """Reduces messages of the edges of this rank.

    Sums and means run in stages (:func:`staged_sum`) or, in mode ``in_kernel``, in one kernel that
    reads rows of other ranks (:class:`InKernelSums`). Other reductions, half types (whose sums are
    kept in float32), and weights of edges that need gradients gather the whole halo at once.

    Args:
        plan: which rows of sources are exchanged.
        local: the edges, from extended rows of sources.
        mode: one of :data:`MODES`; None: :func:`default_mode`.
    """

    def __init__(self, plan: HaloPlan, local: Csc, mode: str | None) -> None:
        self.plan = plan
        self.local = local
        local.matrix.blocks_columns = True
        self.mode = default_mode(plan) if mode is None else mode
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        self._blocks: SourceBlocks | None = None
        self._in_kernel: InKernelSums | None = None

    @property
    def blocks(self) -> SourceBlocks:
        """The edges by the rank of their source, made at the first use."""
        if self._blocks is None:
            self._blocks = SourceBlocks(self.local.matrix, BlockStages(self.plan, self.mode))
        return self._blocks

    @property
    def in_kernel(self) -> InKernelSums:
        """Sums by a kernel that reads rows of other ranks, made at the first use."""
        if self._in_kernel is None:
            self._in_kernel = InKernelSums(self.plan, self.local.matrix)
        return self._in_kernel

    def __call__(self, message: str, reduce: str, x: Tensor | None, e: Tensor | None) -> Tensor:
        """Returns reduced messages, [local destinations, *features]. Collective, differentiable.

        Args:
            message, reduce: as for :func:`peergraph.aggregate.g_spmm`.
            x: [local rows of sources, *features], or None.
            e: [local edges, *features], or None.
        """
        x, e = autocast(x), autocast(e)
        if x is not None and self._runs_staged(message, reduce, x, e):
            rows, weights, features = align(x, e)
            assert rows is not None
            if self.mode == "in_kernel":
                sums = self.in_kernel(rows, weights, reduce == "mean")
            else:
                sums = staged_sum(self.blocks, rows, weights, reduce == "mean")
            return sums.reshape(sums.shape[0], *features)
        [sources], _ = local_operands(self.plan, [x])
        # Gradients of maxima, too, are added in a fixed order.
        return self.local.spmm(message, reduce, sources, e, backward="transpose")

    def _runs_staged(self, message: str, reduce: str, x: Tensor, e: Tensor | None) -> bool:
        if self.plan.is_empty or reduce not in ("sum", "mean") or not accumulates_in(x.dtype):
            return False
        if columns(tuple(x.shape[1:])) == 0:
            return False
        if e is None:
            return message == "copy_u"
        constant = not (e.requires_grad and torch.is_grad_enabled())
        narrow = x.dim() >= e.dim() and all(
            size in (1, wide) for wide, size in zip(x.shape[1:], e.shape[1:], strict=False)
        )
        return message == "mul" and constant and narrow and e.dtype == x.dtype


def default_mode(plan: HaloPlan) -> str:
    """Returns the mode that moves fewer rows, where packed rows cost more; equal on all ranks.

    Where rates are known, :func:`peergraph.fullgraph.exchange.mode_cost.sum_costs` tells better.
    """
    counts = plan.layout.counts
    distinct = max(map(sum, plan.needed))
    whole = max(
        sum(count for count, needed in zip(counts, row, strict=True) if needed)
        for row in plan.needed
    )
    return "halo" if distinct * (1 + _PACKING) < whole else "blocks"
