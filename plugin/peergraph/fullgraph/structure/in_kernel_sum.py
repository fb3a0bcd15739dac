"""Sums whose kernel reads rows of other ranks while it sums local edges (MGG 3).

It needs no buffers and no stages, but reads a remote row for each edge: it pays where few edges
share a remote row. Gradients are partial sums of the halo, which travel back to their owners.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import MESSAGES, launch_on
from peergraph.aggregate.ops.once_differentiable import once_differentiable
from peergraph.aggregate.ops.source_gradients import divide_by_degrees
from peergraph.aggregate.sparse.csr import CsrMatrix
from peergraph.fullgraph.exchange.halo import HaloPlan
from peergraph.fullgraph.exchange.mapped_rows import MappedRows
from peergraph.memory.device.launching import Buffers


class InKernelSums:
    """Sums over the edges of this rank.

    Args:
        plan: which rows of sources are read.
        matrix: the edges, from extended rows of sources.
    """

    def __init__(self, plan: HaloPlan, matrix: CsrMatrix) -> None:
        self.plan = plan
        self.matrix = matrix
        self.rows = MappedRows(plan)

    def __call__(self, x: Tensor, e: Tensor | None, mean: bool) -> Tensor:
        """Returns the sum or mean of messages at this rank's destinations. Collective.

        Args:
            x: [local rows of sources, columns] float32 or float64.
            e: [local edges, columns or a divisor], which needs no gradient, or None.
            mean: divide by the number of edges of each destination.
        """
        found: Tensor = _InKernelSum.apply(x.contiguous(), e, self, mean)  # type: ignore[no-untyped-call]
        return found

    def forward(self, x: Tensor, e: Tensor | None, mean: bool) -> Tensor:
        """Returns the sums, without autograd."""
        matrix, width = self.matrix, x.shape[1]
        if e is not None and e.shape[1] != 1:
            e = e.repeat_interleave(width // e.shape[1], 1)
        published = self.rows.publish(x)
        columns = published.columns
        if e is not None and e.shape[1] != 1:
            e = torch.nn.functional.pad(e, (0, columns - width))
        out = x.new_empty(matrix.num_rows, columns)
        operands = _C.Operands(
            message=MESSAGES["copy_u" if e is None else "mul"],
            addresses=published.addresses,
            address_bits=published.bits,
            e=None if e is None else e.contiguous(),
            columns=columns,
            e_columns=1 if e is None else e.shape[1],
            leases=published.leases,
        )
        _C.spmm(
            matrix.tensors.native(),
            operands,
            mean=mean,
            accumulate=False,
            out=out,
            launch=launch_on(out.device),
            allocate=Buffers(out.device),
        )
        self.rows.release()
        return out if columns == width else out[:, :width].contiguous()


class _InKernelSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, e: Tensor | None, sums: InKernelSums, mean: bool) -> Tensor:
        ctx.sums, ctx.mean = sums, mean
        ctx.save_for_backward(e)
        return sums.forward(x, e, mean)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        (e,) = ctx.saved_tensors
        matrix: CsrMatrix = ctx.sums.matrix
        grad = divide_by_degrees(matrix, grad) if ctx.mean else grad.contiguous()
        partial = matrix.transpose().spmm(grad, e, "copy_u" if e is None else "mul")
        return ctx.sums.plan.add_to_owners(partial), None, None, None
