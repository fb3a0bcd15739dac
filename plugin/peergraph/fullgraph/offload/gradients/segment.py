"""Autograd over recorded functions: one node for a chain, evaluated chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.offload.gradients.input_kind import has_selected_gradients, serves
from peergraph.fullgraph.offload.gradients.program_gradients import (
    ProgramGradients,
    refuse_second_derivative,
)
from peergraph.fullgraph.offload.passes.chunk_pass import PassChunk
from peergraph.fullgraph.offload.programs.program import Compiled, Place
from peergraph.fullgraph.offload.programs.record import (
    EdgesOperand,
    Operand,
    ResidentOperand,
    RowOperand,
    SourceOperand,
)
from peergraph.fullgraph.offload.tensor.offloaded_function import OffloadedFunction
from peergraph.fullgraph.offload.tensor.offloaded_tensor import (
    Cell,
    Content,
    OffloadedTensor,
    make_shell,
)
from peergraph.fullgraph.offload.tensor.row_space import RowSpace
from peergraph.fullgraph.tensor.arguments import local_rows_of_plain
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.unrecorded_views import view_without_gradients


def is_boundary(operand: RowOperand) -> bool:
    """Whether gradients flow to the rows by a node of their own, or not at all."""
    content = operand.content
    return operand.identity is not None or content.store is not None or content.keeps


def recorded(content: Content, needs_grad: bool, is_leaf: bool, is_view: bool) -> OffloadedTensor:
    """Returns the tensor of recorded rows, with autograd's history where it has one.

    Args:
        content: the rows.
        needs_grad: whether the tensor needs gradients.
        is_leaf: whether none flow on from it: it was made with `requires_grad=True`, or without
            gradients as a view.
        is_view: whether it is a view of another tensor.
    """
    if not needs_grad:
        return make_shell(content)
    if not is_leaf:
        return with_history(content)  # type: ignore[no-any-return]
    tensor = make_shell(content)
    if not is_view:
        tensor.requires_grad_()
        return tensor
    view = view_without_gradients(tensor)
    view._content, view._cell = content, Cell(content, False)
    return view


def with_history(*contents: Content) -> Any:
    """Returns tensors of recorded rows whose gradients flow through the records.

    Nothing is computed. The gradients of all together are computed in one pass.
    """
    compiled = compile_history([RowOperand(Cell(c, True), None) for c in contents], contents)
    with torch.enable_grad():
        tensors = Segment.apply(compiled, contents, None, *history_inputs(compiled.operands))
    return tensors[0] if len(tensors) == 1 else tensors


def make_boundary(x: OffloadedTensor) -> RowOperand:
    """Returns the rows as they are now, to which gradients flow by a node of their own."""
    operand = row_operand(x)
    if operand.identity is None and x._cell.needs_grad:
        with torch.enable_grad():
            x._cell.identity = Alias.apply(x)
    return operand


def gets_gradient(x: OffloadedTensor) -> bool:
    """Returns whether gradients of functions of a tensor flow to its node of autograd."""
    identity = row_operand(x).identity
    return identity is x or (identity is not None and type(identity.grad_fn) is Alias._backward_cls)


def compile_history(roots: Sequence[RowOperand], own: Sequence[Content] = ()) -> Compiled:
    """Returns the program that a node of autograd differentiates.

    Args:
        roots: what the node computes.
        own: contents of tensors that get the node.
    """
    compiled = Compiled(roots, is_boundary)
    for content in compiled.contents:
        content.is_passed |= all(content is not other for other in own)
    return compiled


def row_operand(handle: OffloadedTensor) -> RowOperand:
    """Returns the rows of an offloaded tensor as they are now."""
    cell = handle._cell
    # Gradients of a leaf, of an aggregation, and through functions of others have their own way.
    follows_record = handle.requires_grad == cell.needs_grad and cell.content.store is None
    if handle.requires_grad and type(handle.grad_fn) is not Segment._backward_cls:
        follows_record = False  # A function of others has given it a history.
    if cell.identity is not None or not (handle.requires_grad or cell.needs_grad):
        return RowOperand(cell, None)
    return RowOperand(cell, None if follows_record else handle)


def keep_node(before: RowOperand) -> None:
    """Has gradients of rows flow to the node that their tensor has now, whichever it gets."""
    if before.handle is not None and before.cell.identity is None:
        with torch.enable_grad():
            before.cell.identity = Alias.apply(before.handle)


def move_history(handle: OffloadedTensor, content: Content) -> None:
    """Gives a tensor that is changed in place the history of a record of a function of it."""
    compiled = compile_history([RowOperand(Cell(content, True), None)], [content])
    Segment.apply(compiled, (content,), handle, handle, *history_inputs(compiled.operands))


def history_inputs(operands: Sequence[Operand]) -> list[Tensor | None]:
    """Returns the tensors of operands, as inputs of a node of autograd."""
    inputs: list[Tensor | None] = []
    for operand in operands:
        if isinstance(operand, (RowOperand, SourceOperand)):
            rows = operand if isinstance(operand, RowOperand) else operand.rows
            inputs.append(make_shell(rows.content) if rows.identity is None else rows.identity)
        elif isinstance(operand, EdgesOperand):
            inputs.append(None)
        else:
            inputs.append(operand.tensor)
    return inputs


def differentiable_program(
    space: RowSpace,
    compiled: Compiled,
    compute: Callable[[Any], tuple[Any, Sequence[Tensor | None]]],
    differentiate: Callable[..., dict[str, Any]],
) -> Any:
    """Returns what a program computes at once, as a function of its inputs. Collective.

    Args:
        space: the rows that the program visits.
        compiled: the program.
        compute: returns the results, and rows of inputs that the gradient does not compute again:
            see :meth:`ProgramGradients.save`. Called with the context of the node.
        differentiate: returns arguments of :meth:`ProgramGradients.backward`, from the gradients of
            the results.
    """
    gradients = ProgramGradients(space, compiled)

    def run(ctx: Any, inputs: Sequence[Tensor | None]) -> Any:
        results, selected_rows = compute(ctx)
        gradients.save(ctx, compiled, inputs, selected_rows)
        return results

    return _Program.apply(gradients, run, differentiate, *history_inputs(compiled.operands))


class _Program(OffloadedFunction):
    """The results of a program; their gradient runs it again, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        gradients: ProgramGradients,
        run: Callable[[Any, Sequence[Tensor | None]], Any],
        differentiate: Callable[..., dict[str, Any]],
        *inputs: Tensor | None,
    ) -> Any:
        ctx.gradients, ctx.differentiate = gradients, differentiate
        return run(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        arguments, needs = ctx.differentiate(*grads), ctx.needs_input_grad[3:]
        return None, None, None, *ctx.gradients.backward(ctx, needs, **arguments)


class Segment(OffloadedFunction):
    """Recorded rows as a function of stored ones; forward computes nothing."""

    @staticmethod
    def forward(
        ctx: Any,
        compiled: Compiled,
        contents: Sequence[Content],
        changed: OffloadedTensor | None,
        *inputs: Tensor | None,
    ) -> tuple[OffloadedTensor, ...]:
        operands = inputs if changed is None else inputs[1:]
        ctx.is_change = changed is not None
        ctx.differentiated = ProgramGradients(contents[0].space, compiled)
        ctx.differentiated.save(ctx, compiled, operands)
        if changed is not None:
            ctx.mark_dirty(changed)
            return (changed,)
        return tuple(make_shell(content, needs_grad=True) for content in contents)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        first = 3 + ctx.is_change
        nothing = [None] * first
        needs = ctx.needs_input_grad[first:]
        differentiated: ProgramGradients = ctx.differentiated
        slots_and_grads = [
            (slot, grad)
            for slot, grad in zip(differentiated.outputs, grads, strict=True)
            if grad is not None
        ]
        rows = [RowOperand(Cell(g._content, False), g) for _, g in slots_and_grads
                if isinstance(g, OffloadedTensor)]  # fmt: skip

        def heads(
            chunk: PassChunk, place: Place, computed: list[Any], results: list[Any]
        ) -> tuple[list[Tensor], list[Tensor]]:
            grad_rows = iter(computed)
            outputs, output_grads = [], []
            for slot, grad in slots_and_grads:
                output = results[slot]
                if isinstance(grad, OffloadedTensor):
                    local = next(grad_rows).to_local()
                elif isinstance(grad, PartitionedTensor):
                    local = place.resident_rows(
                        ResidentOperand(grad, differentiated.space, None)
                    ).rows
                else:
                    dim = output.partitioned_dim - output.dim()
                    local = local_rows_of_plain("gradient", grad, output.row_layout, dim)
                outputs.append(output.to_local())
                output_grads.append(local.to(output.dtype))
            return outputs, output_grads

        # Gradients of selected rows only, of one selection, need no other rows.
        parts = [row.content.selected for row in rows]
        selection = None if not parts or parts[0] is None else parts[0].selection
        if len(rows) < len(slots_and_grads) or any(
            part is None or part.selection is not selection for part in parts
        ):
            selection = None
        kinds = differentiated.kinds
        if selection is not None and not (
            serves(selection, kinds) and has_selected_gradients(selection, kinds, needs)
        ):
            selection = None
        results = differentiated.backward(ctx, needs, heads, roots=rows, selection=selection)
        return (*nothing, *results)


class Alias(OffloadedFunction):
    """The same rows, with a node of their own."""

    @staticmethod
    def forward(ctx: Any, x: OffloadedTensor) -> OffloadedTensor:
        return make_shell(x._content)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad
