"""Selected rows of offloaded tensors, which are on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.functions.gathering import resident_rows
from peergraph.fullgraph.offload.functions.recording import record, refuse
from peergraph.fullgraph.offload.gradients.program_gradients import (
    InputKind,
    ProgramGradients,
    serves,
)
from peergraph.fullgraph.offload.gradients.segment import (
    compile_history,
    history_inputs,
    row_operand,
)
from peergraph.fullgraph.offload.passes.chunk_pass import PassChunk
from peergraph.fullgraph.offload.programs.program import Compiled, Place, no_autograd
from peergraph.fullgraph.offload.programs.record import RowOperand
from peergraph.fullgraph.offload.programs.row_pass import (
    RowPass,
    is_stored,
    store_rows,
    store_sources,
)
from peergraph.fullgraph.offload.programs.selected_rows import Selection
from peergraph.fullgraph.offload.tensor.offloaded_function import OffloadedFunction
from peergraph.fullgraph.offload.tensor.offloaded_tensor import RULES, OffloadedTensor
from peergraph.fullgraph.tensor.conversions import from_local, take_rows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.selection import selection


def getitem(x: Tensor, index: Any) -> Tensor:
    """Selected rows on the device, or columns of all rows."""
    if not isinstance(x, OffloadedTensor):
        if isinstance(x, PartitionedTensor):
            index = rows_on_device(index)
            return x[index]
        result: Tensor = record(Tensor.__getitem__, (x, index), {})
        return result
    if _is_mask_of_dimensions(index, x):
        return getitem(x.flatten(0, index.dim() - 1), index.reshape(-1))
    parts = list(index) if isinstance(index, tuple) else [index]
    place = place_of_rows(parts, x)
    rows = slice(None) if place is None else parts[place]
    if is_all_rows(rows, x):
        columns: Tensor = record(Tensor.__getitem__, (x, index), {})
        return columns
    assert place is not None
    selected = select_rows(x, rows_on_device(rows))
    parts[place] = slice(None)
    if are_pairs(parts, rows):
        parts[place] = mask_of_all(selected)
    if isinstance(rows, int) and not isinstance(rows, bool):
        assert isinstance(selected, PartitionedTensor)
        selected = selected.full_tensor()
        parts[place] = 0
    if all(isinstance(part, slice) and part == slice(None) for part in parts):
        return selected
    return selected[tuple(map(rows_on_device, parts))]


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Rows by ids, or columns."""
    if isinstance(input, OffloadedTensor) and dim % input.dim() == input.partitioned_dim:
        return select_rows(input, rows_on_device(index))
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
        rows = slice(rows % x.layout.size, rows % x.layout.size + 1)
    if not x._content.is_storable:
        refuse("indexing", "rows are selected from a view of which they are no rows")
    return rows_of(x, selection(x.layout, rows))


def rows_of(x: OffloadedTensor, layout: RowLayout) -> PartitionedTensor:
    """Returns the rows of a selection of `x`'s rows on the device; all of them are `x`.

    Collective; differentiable.
    """
    whole = x._content.space.layout
    by_ids = layout.by_ids or layout.parent is not whole
    if layout is x.layout or (not by_ids and layout.size == whole.size):
        return x.view(x.shape)  # type: ignore[return-value]
    return _rows_by_ids(x, layout) if by_ids else _rows_by_mask(x, layout)


def _rows_by_mask(x: OffloadedTensor, layout: RowLayout) -> PartitionedTensor:
    operand = row_operand(x)
    chosen = Selection.of(x._content.space, layout)
    store_sources([operand])
    read = Compiled([operand], is_stored).operands
    if not serves(chosen, [InputKind.of(part) for part in read]):
        with no_autograd():
            store_rows([operand])
        operand = row_operand(x)
    if not (x.requires_grad and torch.is_grad_enabled()):
        [rows] = compute_rows([operand], chosen)
        return wrap(rows, layout, 0)
    compiled = compile_history([operand])
    result: PartitionedTensor = SelectRows.apply(
        compiled, operand, chosen, *history_inputs(compiled.operands)
    )
    return result


def _rows_by_ids(x: OffloadedTensor, layout: RowLayout) -> PartitionedTensor:
    """Rows in the order of ids, taken from the rows that a mask selects. Collective."""
    rows, chosen = layout.parent_rows, x._content.space.layout.select_mask(local_mask(layout))
    assert rows is not None and chosen.parent_rows is not None
    selected = _rows_by_mask(x, chosen).to_local()
    # The gradient adds rows that occur more than once in a fixed order.
    return from_local(selected[torch.searchsorted(chosen.parent_rows, rows)], layout)


def local_mask(layout: RowLayout) -> Tensor:
    """Returns which of this rank's rows a selection has, bool [local rows of the parent]."""
    rows, parent = layout.parent_rows, layout.parent
    assert rows is not None and parent is not None
    mask = torch.zeros(parent.local_count, dtype=torch.bool, device=rows.device)
    mask[rows] = True
    return mask


def compute_rows(operands: Sequence[RowOperand], chosen: Selection) -> list[Tensor]:
    """Returns this rank's selected rows of several contents. Collective; not differentiable."""
    space = chosen.space
    with no_autograd():
        found = [
            torch.empty(
                (chosen.layout.local_count, *operand.content.features),
                dtype=operand.content.dtype,
                device=space.rank.device,
            )
            for operand in operands
        ]
    row_pass = RowPass(space, operands, chosen)

    def visit(chunk: PassChunk, place: Place, values: list[Any]) -> None:
        for slot, rows in zip(row_pass.outputs, found, strict=True):
            rows[chunk.start : chunk.stop] = values[slot].to_local()

    row_pass.run(visit)
    return found


class SelectRows(OffloadedFunction):
    """Rows that a mask selects. Nothing is computed for other rows, nor for their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        compiled: Compiled,
        operand: RowOperand,
        chosen: Selection,
        *inputs: Tensor | None,
    ) -> PartitionedTensor:
        ctx.differentiated = ProgramGradients(operand.content.space, compiled)
        ctx.chosen = chosen
        # Rows that are not stored are kept as the gradient needs them, the selected ones only.
        kept = [
            part
            for part in compiled.operands
            if isinstance(part, RowOperand) and part.content.store is None
        ]
        rows, *known = compute_rows([operand, *kept], chosen)
        by_operand = dict(zip(map(id, kept), known, strict=True))
        kept_rows = [by_operand.get(id(part)) for part in compiled.operands]
        ctx.differentiated.save(ctx, inputs, kept_rows)
        return wrap(rows, chosen.layout, 0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found: ProgramGradients = ctx.differentiated
        local = take_rows(grad, ctx.chosen.layout, 0)._local
        [slot] = found.outputs

        def heads(
            chunk: PassChunk, place: Place, computed: Sequence[Any], results: list[Any]
        ) -> tuple[list[Tensor], list[Tensor]]:
            return [results[slot].to_local()], [local[chunk.start : chunk.stop]]

        needs = ctx.needs_input_grad[3:]
        results = found.backward(ctx, needs, [], heads, selection=ctx.chosen)
        return (None, None, None, *results)


def are_pairs(others: Sequence[Any], rows: Any) -> bool:
    """Returns whether an index of rows is one of lists that name elements together.

    Args:
        others: the other parts of the index.
        rows: the part of the rows.
    """
    return _is_list(rows) and any(map(_is_list, others))


def _is_list(part: Any) -> bool:
    return isinstance(part, (list, np.ndarray)) or (isinstance(part, Tensor) and part.dim() > 0)


def mask_of_all(rows: Tensor) -> PartitionedTensor:
    """Returns the mask of all rows of a partitioned tensor on the device."""
    assert isinstance(rows, PartitionedTensor)
    mask = torch.ones(rows.layout.local_count, dtype=torch.bool, device=rows.device)
    return from_local(mask, rows.layout)


def _is_mask_of_dimensions(index: Any, x: OffloadedTensor) -> bool:
    """Whether an index is a mask of several dimensions, of which the last has the rows."""
    return (
        isinstance(index, PartitionedTensor)
        and index.dtype == torch.bool
        and index.dim() > 1
        and index.partitioned_dim == x.partitioned_dim == index.dim() - 1
    )


def is_all_rows(rows: Any, x: OffloadedTensor) -> bool:
    """Returns whether an index of rows is a range of all."""
    return isinstance(rows, slice) and rows.indices(x.layout.size) == (0, x.layout.size, 1)


def place_of_rows(parts: list[Any], x: OffloadedTensor) -> int | None:
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


def rows_on_device(rows: Any) -> Any:
    """Returns rows by which others are selected; those that were not computed are."""
    if isinstance(rows, OffloadedTensor):
        return resident_rows(rows, rows.layout)
    return rows
