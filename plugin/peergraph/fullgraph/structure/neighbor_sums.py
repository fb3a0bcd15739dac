"""Reductions of sources' rows at this rank's destinations, by the exchange that serves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from peergraph.aggregate import Csc, Sum
from peergraph.aggregate.ops.operands import align, autocast, columns
from peergraph.aggregate.ops.source_gradients import accumulates_in
from peergraph.aggregate.sparse.edge_matrix import Backward
from peergraph.fullgraph.exchange.block_stages import BlockStages
from peergraph.fullgraph.exchange.halo import Halo, HaloPlan
from peergraph.fullgraph.exchange.local_operands import local_operands
from peergraph.fullgraph.exchange.machine_halo import MachineHaloPlan
from peergraph.fullgraph.exchange.mode_cost import MODES
from peergraph.fullgraph.structure.in_kernel_sum import InKernelSums
from peergraph.fullgraph.structure.staged_sum import MachineBlocks, SourceBlocks, staged_sum
from peergraph.memory import TableRows
from peergraph.memory.device.default_machine import WORK

ModeChoice = str | Callable[[int], str]
"""The mode of all sums, or a function from the bytes of a row to the mode of its sums."""


class NeighborSums:
    """Reduces messages of the edges of this rank.

    Sums and means run in stages (:func:`staged_sum`) or, in mode ``in_kernel``, in one kernel that
    reads rows of other ranks (:class:`InKernelSums`). Other reductions, half types (whose sums are
    kept in float32), and weights of edges that need gradients gather the whole halo at once.

    Args:
        plan: which rows of sources are exchanged.
        local: the edges, from extended rows of sources.
        mode: one of :data:`MODES` for all sums; or a function from the bytes of a row to the mode
            of its sums, the same on all ranks; None: :func:`default_mode`.
    """

    def __init__(self, plan: Halo, local: Csc, mode: ModeChoice | None) -> None:
        self.plan = plan
        self.local = local
        local.blocks_columns = True
        self.mode: ModeChoice = default_mode(plan)
        if mode is not None:
            self.set_mode(mode)
        self.last_exchange = "no sum has run"
        """How the rows of the last reduction travelled, in words."""
        self._blocks: dict[tuple[str, bool], SourceBlocks | MachineBlocks] = {}
        self._in_kernel: InKernelSums | None = None

    def set_mode(self, mode: ModeChoice) -> None:
        """Sets the mode of all sums, or by their width."""
        if isinstance(mode, str) and mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        if mode == "in_kernel" and not isinstance(self.plan, HaloPlan):
            raise NotImplementedError(
                "mode 'in_kernel' reads rows of other ranks in their memory, which ranks of "
                "several machines do not reach: use 'halo' or 'blocks'"
            )
        self.mode = mode

    def mode_for(self, row_bytes: int) -> str:
        """Returns the mode of sums of rows of `row_bytes` bytes each."""
        return self.mode if isinstance(self.mode, str) else self.mode(row_bytes)

    def blocks(self, mode: str, *, has_edge_ids: bool) -> SourceBlocks | MachineBlocks:
        """Returns the edges by the rank of their source, made at the first use of a mode.

        Args:
            has_edge_ids: whether sums have values of edges. Blocks for these serve other sums, too.
        """
        blocks = self._blocks.get((mode, True))
        if blocks is None and not has_edge_ids:
            blocks = self._blocks.get((mode, False))
        if blocks is None:
            blocks = self._make_blocks(mode, has_edge_ids)
            self._blocks.pop((mode, False), None)
            self._blocks[mode, has_edge_ids] = blocks
        return blocks

    def _make_blocks(self, mode: str, has_edge_ids: bool) -> SourceBlocks | MachineBlocks:
        matrix, plan = self.local, self.plan
        if isinstance(plan, HaloPlan):
            return SourceBlocks(matrix, BlockStages(plan, mode), has_edge_ids=has_edge_ids)
        assert isinstance(plan, MachineHaloPlan)
        within = SourceBlocks(matrix, BlockStages(plan.within, mode), has_edge_ids=has_edge_ids)
        imported = SourceBlocks(
            matrix,
            BlockStages(plan.passed_on, default_mode(plan.passed_on)),
            has_edge_ids=has_edge_ids,
            first_column=plan.num_of_machine,
        )
        return MachineBlocks(within, plan.network, imported)

    @property
    def in_kernel(self) -> InKernelSums:
        """Sums by a kernel that reads rows of other ranks, made at the first use."""
        if self._in_kernel is None:
            assert isinstance(self.plan, HaloPlan)
            self._in_kernel = InKernelSums(self.plan, self.local)
        return self._in_kernel

    def __call__(self, of: Sum) -> Tensor:
        """Returns reduced messages, [local destinations, *features]. Collective, differentiable.

        Args:
            of: its `x` are [local rows of sources, *features] and its `e` [local edges, *features].
        """
        check_order(of.backward)
        assert not isinstance(of.x, TableRows)
        x, e = autocast(of.x), autocast(of.e)
        reason = self._why_at_once(of, x, e)
        if x is not None and reason is None:
            rows, weights, features = align(x, e)
            assert rows is not None
            mode = self.mode_for(rows.shape[1] * rows.itemsize)
            mean = of.reduce == "mean"
            if mode == "in_kernel":
                sums = self.in_kernel(rows, weights, mean)
                tuning = self.in_kernel.tuning_of(rows, weights)
                self.last_exchange = mode if tuning is None else f"{mode} ({tuning[0]})"
            else:
                blocks = self.blocks(mode, has_edge_ids=weights is not None)
                sums = staged_sum(blocks, rows, weights, mean)
                self.last_exchange = f"{mode}, in stages{self._over_network()}"
            return sums.reshape(sums.shape[0], *features)
        self.last_exchange = f"all at once: {reason}{self._over_network()}"
        [sources], _ = local_operands(self.plan, [x])
        # Gradients of maxima, too, are added in a fixed order.
        return self.local.reduce(of.of_rows(sources, e, "transpose"))

    def _over_network(self) -> str:
        """Returns how many rows this rank gets from other machines, in words."""
        if not isinstance(self.plan, MachineHaloPlan):
            return ""
        return f", {self.plan.network_rows:,} rows to this rank over the network"

    def _why_at_once(self, of: Sum, x: Tensor | None, e: Tensor | None) -> str | None:
        """Returns why neither stages nor the kernel can sum these messages, or None."""
        message, reduce = of.message, of.reduce
        if x is None or self.plan.is_empty:
            return "no rows are exchanged"
        if not of.is_basic():
            return f"a sum with {of.settings()}"
        if reduce not in ("sum", "mean"):
            return f"{reduce} is no sum"
        if not accumulates_in(x.dtype):
            return f"sums of {x.dtype} are kept in float32"
        if columns(tuple(x.shape[1:])) == 0:
            return "rows have no columns"
        if e is None:
            return None if message == "copy_u" else f"messages are {message}"
        if message != "mul":
            return f"messages are {message}"
        if e.requires_grad and torch.is_grad_enabled():
            return "values of edges need gradients"
        if e.dtype != x.dtype:
            return f"values of edges are {e.dtype}, features {x.dtype}"
        narrow = x.dim() >= e.dim() and all(
            size in (1, wide) for wide, size in zip(x.shape[1:], e.shape[1:], strict=False)
        )
        return None if narrow else "values of edges are wider than features"


def check_order(backward: Backward) -> None:
    """Raises ValueError for atomics: gradients over partitioned edges are in a fixed order."""
    if backward == "atomic":
        raise ValueError("backward='atomic' adds in no fixed order, as partitioned edges do")


def default_mode(plan: Halo) -> str:
    """Returns the mode that moves fewer rows, where packed rows cost more; equal on all ranks of a
    machine.

    Where rates are known, :func:`peergraph.fullgraph.exchange.mode_cost.sum_costs` tells better.
    It never chooses ``in_kernel``, whose cost depends on them.
    """
    if isinstance(plan, MachineHaloPlan):
        plan = plan.within
    assert isinstance(plan, HaloPlan)
    counts = plan.row_layout.counts
    distinct = max(map(sum, plan.demand))
    whole = max(
        sum(count for count, demand in zip(counts, row, strict=True) if demand)
        for row in plan.demand
    )
    return "halo" if distinct * (1 + WORK.packing_share) < whole else "blocks"
