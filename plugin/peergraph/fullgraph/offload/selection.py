"""Selected rows of offloaded tensors, which are on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunk_pass import PassChunk
from peergraph.fullgraph.offload.gathering import resident_rows
from peergraph.fullgraph.offload.offloaded_tensor import RULES, OffloadedTensor
from peergraph.fullgraph.offload.passes import RowPass
from peergraph.fullgraph.offload.recording import record, refuse
from peergraph.fullgraph.offload.records import RowOperand
from peergraph.fullgraph.offload.replay import Compiled, Place
from peergraph.fullgraph.offload.row_segment import (
    Differentiated,
    history_inputs,
    is_boundary,
    row_operand,
)
from peergraph.fullgraph.offload.virtual_rank import RowSpace
from peergraph.fullgraph.tensor.conversions import take_rows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.selection import selection


def getitem(x: Tensor, index: Any) -> Tensor:
    """Selected rows on the device, or columns of all rows."""
    if not isinstance(x, OffloadedTensor):
        if isinstance(x, PartitionedTensor):
            index = _on_device(index)
            return x[index]
        result: Tensor = record(Tensor.__getitem__, (x, index), {})
        return result
    parts = list(index) if isinstance(index, tuple) else [index]
    place = _place_of_rows(parts, x)
    rows = slice(None) if place is None else parts[place]
    if isinstance(rows, slice) and rows.indices(x.layout.size) == (0, x.layout.size, 1):
        columns: Tensor = record(Tensor.__getitem__, (x, index), {})
        return columns
    assert place is not None
    selected = select_rows(x, _on_device(rows))
    parts[place] = slice(None)
    if isinstance(rows, int) and not isinstance(rows, bool):
        assert isinstance(selected, PartitionedTensor)
        selected = selected.full_tensor()
        parts[place] = 0
    if all(isinstance(part, slice) and part == slice(None) for part in parts):
        return selected
    return selected[tuple(parts)]


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Rows by ids, or columns."""
    if isinstance(input, OffloadedTensor) and dim % input.dim() == input.partitioned_dim:
        return select_rows(input, _on_device(index))
    result: Tensor = record(torch.index_select, (input, dim, index), {})
    return result


RULES[Tensor.__getitem__] = getitem
RULES[torch._C._VariableFunctions.index_select] = index_select
RULES[Tensor.index_select] = index_select


def select_rows(x: OffloadedTensor, rows: Any) -> Tensor:
    """Returns rows as a tensor on the device. Collective; differentiable.

    Args:
        x: rows of nodes.
        rows: a mask, ids or a range, as for other partitioned tensors.
    """
    if isinstance(rows, PartitionedTensor) and rows.dtype != torch.bool:
        refuse("indexing", "rows are selected by partitioned ids")
    if isinstance(rows, int) and not isinstance(rows, bool):
        if not -x.layout.size <= rows < x.layout.size:
            raise IndexError(f"index {rows} is out of bounds for {x.layout.size} rows")
        rows = x.layout.range_ids(rows % x.layout.size, rows % x.layout.size + 1, 1)
    if not x._content.is_storable:
        refuse("indexing", "rows are selected from a view of which they are no rows")
    layout = selection(x.layout, rows)
    if layout is x.layout:
        return x.view(x.shape)
    operand = row_operand(x)
    if not (x.requires_grad and torch.is_grad_enabled()):
        return wrap(compute_rows(operand, layout), layout, 0)
    compiled = Compiled([operand], is_boundary)
    result: Tensor = SelectRows.apply(  # type: ignore[no-untyped-call]
        compiled, operand, layout, *history_inputs(compiled.operands)
    )
    return result


class ChunkRows:
    """The rows of a selection by chunk.

    Args:
        space: the rows that are selected from.
        layout: the selection.
    """

    def __init__(self, space: RowSpace, layout: RowLayout) -> None:
        rows = layout.parent_rows
        assert rows is not None
        self.is_ascending = not layout.by_ids
        self.is_unique = layout.unique
        order = None if self.is_ascending else torch.argsort(rows, stable=True)
        ordered = rows if order is None else rows[order]
        offsets = torch.tensor(space.chunks.offsets, device=rows.device)
        self.cuts = torch.searchsorted(ordered, offsets).tolist()
        starts = space.chunks.offsets
        self.rows = [
            ordered[a:b] - start
            for a, b, start in zip(self.cuts, self.cuts[1:], starts, strict=False)
        ]
        """By chunk, rows of the chunk."""
        self.order = order

    def places(self, chunk: int) -> Tensor | slice:
        """Returns the places of a chunk's rows within the selection."""
        part = slice(self.cuts[chunk], self.cuts[chunk + 1])
        return part if self.order is None else self.order[part]


def compute_rows(operand: RowOperand, layout: RowLayout) -> Tensor:
    """Returns this rank's rows of a selection. Collective; not differentiable."""
    content = operand.content
    space = content.space
    chunk_rows = ChunkRows(space, layout)
    result = torch.empty(
        (layout.local_count, *content.features), dtype=content.dtype, device=space.rank.device
    )
    row_pass = RowPass(space, [operand])
    [slot] = row_pass.outputs

    def visit(chunk: PassChunk, place: Place, values: list[Any]) -> None:
        rows = values[slot]._local.index_select(0, chunk_rows.rows[chunk.index])
        result[chunk_rows.places(chunk.index)] = rows

    row_pass.run(visit)
    return result


class SelectRows(torch.autograd.Function):
    """Selected rows; their gradient is computed for these rows only."""

    @staticmethod
    def forward(
        ctx: Any,
        compiled: Compiled,
        operand: RowOperand,
        layout: RowLayout,
        *inputs: Tensor | None,
    ) -> PartitionedTensor:
        ctx.differentiated = Differentiated(operand.content.space, compiled)
        ctx.differentiated.save(ctx, inputs)
        ctx.layout = layout
        return wrap(compute_rows(operand, layout), layout, 0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found: Differentiated = ctx.differentiated
        local = take_rows(grad, ctx.layout, 0)._local
        chunk_rows = ChunkRows(found.space, ctx.layout)
        [slot] = found.outputs

        def heads(
            chunk: PassChunk, place: Place, computed: Sequence[Any], results: list[Any]
        ) -> tuple[list[Tensor], list[Tensor]]:
            rows = chunk_rows.rows[chunk.index]
            output = results[slot].to_local()
            # Gradients of rows that occur more than once are added in a fixed order.
            taken = output.index_select(0, rows) if chunk_rows.is_unique else output[rows]
            return [taken], [local[chunk_rows.places(chunk.index)]]

        results = found.backward(ctx, ctx.needs_input_grad[3:], [], heads)
        return (None, None, None, *results)


def _place_of_rows(parts: list[Any], x: OffloadedTensor) -> int | None:
    """Returns the place of the index of rows among the parts of an index; None for all rows."""
    consumed = 0
    for place, part in enumerate(parts):
        if part is None:
            continue
        if part is Ellipsis:
            rest = sum(_dims_of(other) for other in parts[place + 1 :])
            consumed = x.dim() - rest
            if consumed > x.partitioned_dim:
                return None
            continue
        if consumed == x.partitioned_dim:
            if isinstance(part, Tensor) and part.dim() > 1:
                return None
            return place
        consumed += _dims_of(part)
    return None


def _dims_of(part: Any) -> int:
    if part is None or part is Ellipsis:
        return 0
    return part.dim() if isinstance(part, Tensor) and part.dtype == torch.bool else 1


def _on_device(rows: Any) -> Any:
    """Returns rows by which others are selected; those that were not computed are."""
    if isinstance(rows, OffloadedTensor):
        return resident_rows(rows, rows.layout)
    return rows
