"""Sums over the edges of this rank, one block of sources after the other (MG-GCN 4.1, 4.3).

``out = sum over ranks q of A_q x_q``: A_q are the edges from sources on rank q, x_q its rows. The
rows of the next ranks travel while those of one are multiplied. Gradients of x are partial sums
over the transposes, which travel back while the next are computed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.ops.once_differentiable import once_differentiable
from peergraph.aggregate.ops.source_gradients import divide_by_degrees
from peergraph.aggregate.sparse.column_blocks import take_columns
from peergraph.aggregate.sparse.csr import CsrMatrix
from peergraph.fullgraph.exchange.block_stages import BlockStages


class SourceBlocks:
    """The edges of this rank by the rank of their source.

    Args:
        matrix: the edges, from extended rows of sources.
        stages: how the rows of sources travel.
        has_edge_ids: whether sums may have values of edges; else the edges and their transposes
            take 8 bytes an edge in place of 16.
    """

    def __init__(
        self, matrix: CsrMatrix, stages: BlockStages, *, has_edge_ids: bool = True
    ) -> None:
        self.stages = stages
        self.has_edge_ids = has_edge_ids
        self.matrix = matrix
        plan = stages.plan
        layout = plan.layout
        self.rank = layout.group.rank
        own = take_columns(matrix, 0, plan.num_local, edge_ids=has_edge_ids)
        self.blocks = {self.rank: own}
        """By rank, the edges from the rows that :class:`BlockStages` brings from it."""
        first = plan.num_local
        for source, count in enumerate(plan.halo_counts):
            if count == 0:
                continue
            block = take_columns(matrix, first, first + count, edge_ids=has_edge_ids)
            if stages.mode == "blocks":
                rows = plan.halo_rows[first - plan.num_local :][:count] - layout.offsets[source]
                columns = rows[block.indices.long()].to(block.indices.dtype)
                block = CsrMatrix(
                    block.indptr, columns, layout.counts[source], edge_ids=block.edge_ids
                )
            self.blocks[source] = block
            first += count
        for block in self.blocks.values():
            block.blocks_columns = True
            block.has_edge_operands = has_edge_ids


def staged_sum(blocks: SourceBlocks, x: Tensor, e: Tensor | None, mean: bool) -> Tensor:
    """Returns the sum or mean of messages at this rank's destinations. Collective.

    The message is x, or x times e. Differentiable once in `x`. Alive beside `x` and the result are
    two buffers of the most rows that one rank sends, with ``halo`` as many packed rows where ranks
    exchange them by torch.distributed, and in backward three.

    Args:
        blocks: the edges.
        x: [local rows of sources, columns] float32 or float64, whose sums are kept in its dtype.
        e: [local edges, columns or a divisor], which needs no gradient, or None.
        mean: divide by the number of edges of each destination.
    """
    found: Tensor = _StagedSum.apply(x.contiguous(), e, blocks, mean)  # type: ignore[no-untyped-call]
    return found


class _StagedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, e: Tensor | None, blocks: SourceBlocks, mean: bool) -> Tensor:
        ctx.blocks, ctx.mean = blocks, mean
        ctx.save_for_backward(e)
        message = "copy_u" if e is None else "mul"
        out: Tensor | None = None
        for source, rows in blocks.stages.gather(x):
            block = blocks.blocks[source]
            if out is None:
                out = block.spmm(rows, e, message)
            else:
                block.add_spmm(out, rows, e, message)
        assert out is not None
        return out.div_(_divisors(blocks.matrix, out.dtype)) if mean else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        blocks: SourceBlocks = ctx.blocks
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        (e,) = ctx.saved_tensors
        message = "copy_u" if e is None else "mul"
        grad = divide_by_degrees(blocks.matrix, grad) if ctx.mean else grad.contiguous()

        def partial_sums(source: int) -> Tensor:
            return blocks.blocks[source].transpose().spmm(grad, e, message)

        found = blocks.stages.add_to_owners(grad, lambda: partial_sums(blocks.rank), partial_sums)
        return found, None, None, None


def _divisors(matrix: CsrMatrix, dtype: torch.dtype) -> Tensor:
    return matrix.degrees().clamp(min=1).to(dtype).unsqueeze(1)
