"""Sums over the edges of this rank, one block of sources after the other (MG-GCN 4.1, 4.3).

``out = sum over ranks q of A_q x_q``: A_q are the edges from sources on rank q, x_q its rows. The
rows of the next ranks travel while those of one are multiplied. Gradients of x are partial sums
over the transposes, which travel back while the next are computed.

Rows of other machines cross the network while those of this machine are summed; those that a rank
imports are then summed as its own rows are, and passed on to the other ranks in stages.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from peergraph.aggregate.ops.source_gradients import divide_by_degrees
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.fullgraph.exchange.block_stages import BlockStages
from peergraph.fullgraph.exchange.halo import HaloPlan
from peergraph.fullgraph.exchange.route import linear


class SourceBlocks:
    """The edges of this rank by the rank of their source.

    Args:
        matrix: the edges, from extended rows of sources.
        stages: how the rows of sources travel.
        has_edge_ids: whether sums may have values of edges; else the edges and their transposes
            take 8 bytes an edge in place of 16.
        first_column: the column of `matrix` that is this rank's first row of the plan of `stages`.
    """

    def __init__(
        self,
        matrix: EdgeMatrix,
        stages: BlockStages,
        *,
        has_edge_ids: bool = True,
        first_column: int = 0,
    ) -> None:
        self.stages = stages
        self.has_edge_ids = has_edge_ids
        self.matrix = matrix
        plan = stages.plan
        layout = plan.row_layout
        self.rank = layout.group.rank
        first = first_column + plan.num_local
        own = matrix.take_columns(first_column, first, edge_ids=has_edge_ids)
        self.blocks = {self.rank: own}
        """By rank, the edges from the rows that :class:`BlockStages` brings from it."""
        start = 0
        for source, count in enumerate(plan.halo_counts):
            if count == 0:
                continue
            block = matrix.take_columns(first, first + count, edge_ids=has_edge_ids)
            if stages.mode == "blocks":
                rows = plan.halo_rows[start : start + count] - layout.offsets[source]
                columns = rows[block.indices.long()].to(block.indices.dtype)
                block = EdgeMatrix(
                    block.indptr, columns, layout.counts[source], edge_ids=block.edge_ids
                )
            self.blocks[source] = block
            first += count
            start += count
        for block in self.blocks.values():
            block.blocks_columns = True
            block.has_edge_operands = has_edge_ids

    def add_sums(self, out: Tensor | None, x: Tensor, e: Tensor | None) -> Tensor:
        """Adds sums of messages to `out`, or returns new ones for None. Collective."""
        message = "copy_u" if e is None else "mul"
        for source, rows in self.stages.gather(x):
            block = self.blocks[source]
            if out is None:
                out = block.sum_messages(rows, e, message)
            else:
                block.add_messages(out, rows, e, message)
        assert out is not None
        return out

    def source_gradients(self, grad: Tensor, e: Tensor | None) -> Tensor:
        """Returns gradients of this rank's rows from those of sums. Collective."""
        message = "copy_u" if e is None else "mul"

        def partial_sums(source: int) -> Tensor:
            return self.blocks[source].transpose().sum_messages(grad, e, message)

        return self.stages.add_to_owners(grad, lambda: partial_sums(self.rank), partial_sums)


class MachineBlocks(NamedTuple):
    """The edges of this rank, from rows of this machine and from rows that its ranks import."""

    within: SourceBlocks
    """Edges from rows of this machine."""
    network: HaloPlan
    """The rows that ranks import."""
    imported: SourceBlocks
    """Edges from rows that ranks of this machine import."""

    @property
    def matrix(self) -> EdgeMatrix:
        """All edges."""
        return self.within.matrix

    def add_sums(self, out: Tensor | None, x: Tensor, e: Tensor | None) -> Tensor:
        """See :meth:`SourceBlocks.add_sums`."""
        imported = x.new_empty(self.imported.stages.plan.num_local, *x.shape[1:])
        pending = self.network.start_halo(x, imported)
        out = self.within.add_sums(out, x, e)
        pending.wait()
        return self.imported.add_sums(out, imported, e)

    def source_gradients(self, grad: Tensor, e: Tensor | None) -> Tensor:
        """See :meth:`SourceBlocks.source_gradients`."""
        imported = self.imported.source_gradients(grad, e)
        pending, received = self.network.start_return(imported)
        out = self.within.source_gradients(grad, e)
        pending.wait()
        self.network.add_returned(out, received)
        return out


def staged_sum(
    blocks: SourceBlocks | MachineBlocks, x: Tensor, e: Tensor | None, mean: bool
) -> Tensor:
    """Returns the sum or mean of messages at this rank's destinations. Collective.

    The message is x, or x times e. Differentiable in `x`. Alive beside `x` and the result are
    two buffers of the most rows that one rank sends, with ``halo`` as many packed rows where ranks
    exchange them by torch.distributed, and in backward three; on several machines also the rows
    that this rank imports and exports.

    Args:
        blocks: the edges.
        x: [local rows of sources, columns] float32 or float64, whose sums are kept in its dtype.
        e: [local edges, columns or a divisor], which needs no gradient, or None.
        mean: divide by the number of edges of each destination.
    """

    def sums(x: Tensor, e: Tensor | None) -> Tensor:
        out = blocks.add_sums(None, x.contiguous(), e)
        return out.div_(_divisors(blocks.matrix, out.dtype)) if mean else out

    def gradients(grad: Tensor, e: Tensor | None) -> Tensor:
        grad = divide_by_degrees(blocks.matrix, grad) if mean else grad.contiguous()
        return blocks.source_gradients(grad, e)

    return linear(x, sums, gradients, e)


def _divisors(matrix: EdgeMatrix, dtype: torch.dtype) -> Tensor:
    return matrix.in_degrees().clamp(min=1).to(dtype).unsqueeze(1)
