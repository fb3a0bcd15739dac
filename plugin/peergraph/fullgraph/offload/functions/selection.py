"""Selected rows of offloaded tensors, which are on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.functions.recording import change_in_place, refuse
from peergraph.fullgraph.offload.gradients.input_kind import (
    has_selected_gradients,
    input_of,
    serves,
)
from peergraph.fullgraph.offload.gradients.segment import (
    compile_history,
    differentiable_program,
    make_boundary,
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
from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor
from peergraph.fullgraph.tensor.conversions import from_local, take_rows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import METHODS, method
from peergraph.fullgraph.tensor.row_copies import as_view
from peergraph.fullgraph.tensor.selection import select_rows
from peergraph.fullgraph.tensor.unrecorded_views import memory_of_view, view_without_gradients


@method("offloaded range of rows")
def select_range(x: OffloadedTensor, rows: slice) -> PartitionedTensor:
    """Returns a range of rows on the device; `x` refuses to change as long as they are in use.

    Collective; differentiable.
    """
    strides = list(x.stride())
    strides[0] *= rows.step or 1
    with memory_of_view(x):
        selected = select_rows(x, rows)
        local = selected.to_local()
        view = as_view(local, local.shape, selected.shape, strides)
        if view is not local:
            selected = from_local(view, selected.row_layout)
        if x.requires_grad and not torch.is_grad_enabled():
            selected = view_without_gradients(selected)
    memory: Any = selected._local.untyped_storage()
    memory.write_rows = _WriteRows(x, rows, selected)
    x.note_alias(memory)
    return selected


class _WriteRows:
    """Writes rows that were changed on the device to the offloaded tensor that they are of."""

    def __init__(self, x: OffloadedTensor, rows: slice, selected: PartitionedTensor) -> None:
        self.x, self.rows, self.selected = x, rows, ref(selected)
        self.is_suspended = False
        """Whether a function with gradients goes on, after which the rows are written."""

    def __call__(self) -> None:
        if self.is_suspended:
            return
        x, selected = self.x, self.selected()
        if selected is None:
            refuse("assignment", "a part of a range of rows is changed in place: x[rows] = value")
        if torch.is_grad_enabled() and (x.requires_grad or selected.requires_grad):
            refuse("assignment", "a range of rows with gradients is changed: x[rows] = value")
        layout = x.row_layout.select_range(self.rows)
        followers = rows_in_use(x, selected, layout)
        if x.other_aliases():
            refuse("assignment", "another tensor is a view of the one that is changed in place")
        with torch.no_grad(), torch._C._EnableTorchFunction():
            # Below autograd, changes in place are not seen.
            changed = METHODS["written rows"](x, layout, selected.clone())
        change_in_place(x, changed._content, False, row_operand(x))
        for memory in followers:
            x.note_alias(memory)


def writer_of(rows: Any) -> Any:
    """Returns what writes a range of rows of an offloaded tensor to it; None for others."""
    if not isinstance(rows, PartitionedTensor) or isinstance(rows, OffloadedTensor):
        return None
    write = getattr(rows._local.untyped_storage(), "write_rows", None)
    return write if isinstance(write, _WriteRows) else None


def rows_in_use(x: OffloadedTensor, value: Any, layout: RowLayout) -> list[Any]:
    """Returns the memory of ranges of `x` that do not hinder a write to the rows of a layout.

    These are `value`, if it is a range of `x` itself, and ranges that share no row with the layout.
    From now on, `x` may change while they are in use.
    """
    own, followers, staying = writer_of(value), [], []
    for alias in x._cell.aliases:
        memory: Any = alias()
        write = getattr(memory, "write_rows", None)
        if isinstance(write, _WriteRows) and (write is own or _are_apart(write.rows, layout)):
            followers.append(memory)
        else:
            staying.append(alias)
    x._cell.aliases[:] = staying
    return followers


def _are_apart(rows: slice, layout: RowLayout) -> bool:
    """Returns whether a range of rows, and the range that a layout selects, share no row."""
    if layout.bounds is None or layout.parent is None:
        return False
    others = range(*rows.indices(layout.parent.size))
    return set(range(*layout.bounds)).isdisjoint(others)


@method("offloaded selection")
def rows_of(x: OffloadedTensor, layout: RowLayout) -> PartitionedTensor:
    """Returns the rows of a selection of `x`'s rows on the device; all of them are a copy of `x`.

    Collective; differentiable.
    """
    if not x._content.is_storable:
        refuse("indexing", "rows are selected from a view of which they are no rows")
    whole = x._content.space.row_layout
    by_ids = layout.by_ids or layout.parent is not whole
    if layout is x.row_layout or (not by_ids and layout.size == whole.size):
        return x.clone()  # type: ignore[return-value]
    return _rows_by_ids(x, layout) if by_ids else _rows_by_mask(x, layout)


def _rows_by_mask(x: OffloadedTensor, layout: RowLayout) -> PartitionedTensor:
    operand = row_operand(x)
    chosen = Selection.of(x._content.space, layout)
    store_sources([operand])
    needs_grad = x.requires_grad and torch.is_grad_enabled()
    compiled = compile_history([operand]) if needs_grad else None
    if not _can_select(chosen, operand, compiled):
        # Functions of the rows that were recorded before must find the node of their gradient.
        operand = make_boundary(x)
        with no_autograd():
            store_rows([operand])
        operand = row_operand(x)
        compiled = compile_history([operand]) if needs_grad else None
    if compiled is None:
        [rows] = compute_rows([operand], chosen)
        return wrap(rows, layout, 0)
    [slot] = compiled.recipe.outputs

    def differentiate(grad: Tensor) -> dict[str, Any]:
        local = take_rows(grad, layout, 0)._local

        def heads(
            chunk: PassChunk, place: Place, computed: Sequence[Any], results: list[Any]
        ) -> tuple[list[Tensor], list[Tensor]]:
            return [results[slot].to_local()], [local[chunk.start : chunk.stop]]

        return {"heads": heads, "selection": chosen}

    result: PartitionedTensor = differentiable_program(
        x._content.space, compiled, lambda _: _selected(compiled, operand, chosen), differentiate
    )
    return result


def _selected(
    compiled: Compiled, operand: RowOperand, chosen: Selection
) -> tuple[PartitionedTensor, list[Tensor | None]]:
    """Returns the rows that a mask selects, and the rows of inputs that their gradient reads.

    Nothing is computed for other rows. Inputs that are stored are None, and what is no rows, a
    transposed view, which is computed again.
    """
    inputs_to_save = [
        part
        for part in compiled.operands
        if isinstance(part, RowOperand)
        and part.content.store is None
        and part.content.is_storable
        and part.content.space is chosen.space
    ]
    rows, *rows_to_save = compute_rows([operand, *inputs_to_save], chosen)
    by_operand = dict(zip(map(id, inputs_to_save), rows_to_save, strict=True))
    saved = [by_operand.get(id(part)) for part in compiled.operands]
    return wrap(rows, chosen.row_layout, 0), saved


def _can_select(chosen: Selection, operand: RowOperand, history: Compiled | None) -> bool:
    """Returns whether rows, and gradients if there is a history, are computed of a selection."""
    read = Compiled([operand], is_stored).operands
    if not serves(chosen, [input_of(part) for part in read]):
        return False
    if history is None:
        return True
    needs = [
        isinstance(part, RowOperand) and part.identity is not None and part.identity.requires_grad
        for part in history.operands
    ]
    return has_selected_gradients(chosen, [input_of(p) for p in history.operands], needs)


def _rows_by_ids(x: OffloadedTensor, layout: RowLayout) -> PartitionedTensor:
    """Rows in the order of ids, taken from the rows that a mask selects. Collective."""
    rows, chosen = layout.parent_rows, x._content.space.row_layout.select_mask(local_mask(layout))
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
        results = [
            torch.empty(
                (chosen.row_layout.local_count, *operand.content.features),
                dtype=operand.content.dtype,
                device=space.rank.device,
            )
            for operand in operands
        ]
    row_pass = RowPass(space, operands, chosen)

    def visit(chunk: PassChunk, place: Place, values: list[Any]) -> None:
        for slot, rows in zip(row_pass.outputs, results, strict=True):
            rows[chunk.start : chunk.stop] = values[slot].to_local()

    row_pass.run(visit)
    return results
