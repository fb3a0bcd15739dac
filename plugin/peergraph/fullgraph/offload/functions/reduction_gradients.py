"""Gradients of functions that need sums over all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.offload.functions.gathering import resident_rows
from peergraph.fullgraph.offload.functions.recording import Call, record
from peergraph.fullgraph.offload.gradients.input_kind import InputKind, input_of
from peergraph.fullgraph.offload.gradients.program_gradients import (
    differentiable_value,
    refuse_second_derivative,
)
from peergraph.fullgraph.offload.gradients.segment import (
    compile_history,
    differentiable_program,
    history_inputs,
    make_boundary,
)
from peergraph.fullgraph.offload.passes.chunk_pass import PassChunk
from peergraph.fullgraph.offload.programs.program import WHOLE_RESULT, Place
from peergraph.fullgraph.offload.programs.record import (
    PlainOperand,
    Record,
    ResidentOperand,
    RowOperand,
    UnchangedCheck,
    fill,
    refuse_changed,
    require_unchanged,
)
from peergraph.fullgraph.offload.tensor.offloaded_function import OffloadedFunction, without_hooks
from peergraph.fullgraph.offload.tensor.offloaded_tensor import (
    Cell,
    Content,
    OffloadedTensor,
    make_probe,
    make_shell,
)
from peergraph.fullgraph.offload.tensor.virtual_rank import no_number
from peergraph.fullgraph.tensor.arguments import local_rows_of_plain
from peergraph.fullgraph.tensor.nested import distinct_tensors
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap


def differentiable_results(
    call: Call,
    reductions: Sequence[Tensor],
    outputs: Sequence[Tensor],
    contents: Sequence[Content | None],
) -> tuple[Tensor, ...]:
    """Returns the results of a function that needs sums over all rows, with their gradient.

    Args:
        call: the call.
        reductions: its reductions.
        outputs: its results on the probes.
        contents: what is recorded for results that have rows; None for plain ones.
    """
    results: tuple[Tensor, ...]
    if all(content is None for content in contents) and _adds_up_over_chunks(call, reductions):
        recorded = Record(call.operation(), call.operands, call.seeds)
        probe = make_probe(call.space, (), torch.float32)
        content = Content(call.space, probe, record=recorded, output=WHOLE_RESULT)
        compiled = compile_history([RowOperand(Cell(content, True), None)])
        first = compiled.recipe.outputs[0]

        def differentiate(*grads: Tensor | None) -> dict[str, Any]:
            def heads(
                chunk: PassChunk, place: Place, computed: Sequence[Any], values: list[Any]
            ) -> tuple[list[Tensor], list[Tensor]]:
                parts = zip(distinct_tensors(values[first]), grads, strict=True)
                pairs = [(output, grad) for output, grad in parts if grad is not None]
                return [output for output, _ in pairs], [grad for _, grad in pairs]

            return {"heads": heads, "reductions": reductions}

        # The gradient is a function of each row: one pass.
        results = differentiable_program(
            call.space, compiled, lambda ctx: (_results(ctx, outputs, contents), ()), differentiate
        )
        return results
    for tensor in call.tensors:
        if isinstance(tensor, OffloadedTensor):
            make_boundary(tensor)
    results = ReduceWithSums.apply(
        call, reductions, outputs, contents, *history_inputs(call.operands)
    )
    return results


class ReduceWithSums(OffloadedFunction):
    """A function over all rows whose gradient needs sums over all rows, too.

    The gradient is another function of the same rows and of the gradients of the results: its sums
    are found chunk by chunk, and the gradients of rows are recorded.
    """

    @staticmethod
    def forward(
        ctx: Any,
        call: Call,
        reductions: Sequence[Tensor],
        outputs: Sequence[Tensor],
        contents: Sequence[Content | None],
        *inputs: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ctx.gradient = GradientOf(call, reductions, ctx.needs_input_grad[4:])
        ctx.kinds = [input_of(operand) for operand in call.operands]
        # A function that writes into plain tensors does not need what they were.
        plain = [kind for kind in ctx.kinds if isinstance(kind, PlainOperand)]
        ctx.unchanged = [] if call.changes else plain
        ctx.save_for_backward(*(part for part in inputs if isinstance(part, PartitionedTensor)))
        return _results(ctx, outputs, contents)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        saved = iter(ctx.saved_tensors)
        if ctx.unchanged:
            is_changed = any(operand.has_other_values for operand in ctx.unchanged)
            refuse_changed(is_changed, ctx.gradient.rank.real)
        arguments = [_value(kind, saved) for kind in ctx.kinds]
        with torch.no_grad():
            results = iter(record(ctx.gradient, (arguments, grads), {}))
        gradients: list[Tensor | None] = []
        for tensor, need in zip(arguments, ctx.gradient.needs, strict=True):
            grad = next(results) if need else None
            if isinstance(grad, OffloadedTensor) and not isinstance(tensor, OffloadedTensor):
                if isinstance(tensor, PartitionedTensor):
                    grad = resident_rows(grad, tensor.row_layout)
                else:  # of a plain tensor of all rows, which autograd takes for rows
                    grad = grad.full_tensor()
            gradients.append(grad)
        return (None, None, None, None, *gradients)


class GradientOf:
    """The gradient of a function of rows, as a function of its arguments and of gradients.

    Args:
        call: of the function.
        reductions: its reductions over all rows.
        needs: which of the call's operands need a gradient.
    """

    def __init__(self, call: Call, reductions: Sequence[Tensor], needs: Sequence[bool]) -> None:
        self.__name__ = f"the gradient of {call.name}"
        self.rank = call.rank
        self.func, self.args, self.kwargs = call.func, call.args, call.kwargs
        self.modes, self.seeds = call.modes, call.seeds
        self.reductions = reductions
        self.needs = needs

    def __call__(
        self, arguments: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Returns the gradients of the operands that need one.

        Args:
            arguments: the operands.
            grads: of each result of the function, or None.
        """
        values: list[Any] = []
        leaves: list[Tensor] = []
        for value, need in zip(arguments, self.needs, strict=True):
            if need:
                value, leaf = differentiable_value(value)
                leaves.append(leaf)
            values.append(value)
        with self.modes.entered(), torch.enable_grad(), self.rank.replaying(self.seeds):
            with self.rank.with_reductions(self.reductions):
                result = self.func(*fill(self.args, values), **fill(self.kwargs, values))
            heads = [
                _head(output, grad)
                for output, grad in zip(distinct_tensors(result), grads, strict=True)
                if grad is not None and output.requires_grad
            ]
            outputs, output_grads = [head[0] for head in heads], [head[1] for head in heads]
            parts = torch.autograd.grad(outputs, leaves, output_grads, allow_unused=True)
        rows = [value for value, need in zip(values, self.needs, strict=True) if need]
        return [
            wrap(part, value.row_layout, value.partitioned_dim)
            if isinstance(value, PartitionedTensor) and part is not None
            else part
            for value, part in zip(rows, parts, strict=True)
        ]


def _head(output: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the local rows of a result and of its gradient; plain ones as they are."""
    if isinstance(output, PartitionedTensor):
        if isinstance(grad, PartitionedTensor):
            grad = grad._local
        else:
            dim = output.partitioned_dim - output.dim()
            grad = local_rows_of_plain("gradient", grad, output.row_layout, dim)
        output = output.to_local()
    return output, grad.to(output.dtype)


def _value(kind: InputKind | PlainOperand, saved: Any) -> Tensor:
    """Returns the argument of a recorded gradient."""
    if isinstance(kind, PlainOperand):
        return kind.values
    tensor: Tensor = next(saved)
    if isinstance(tensor, OffloadedTensor):
        return make_shell(tensor._content)
    operand = kind.operand(tensor)
    assert isinstance(operand, ResidentOperand)
    require_unchanged([UnchangedCheck([operand])], operand.space.rank.real)
    return tensor.detach()


def _results(
    ctx: Any, outputs: Sequence[Tensor], contents: Sequence[Content | None]
) -> tuple[Tensor, ...]:
    """Returns the results of a node of autograd: plain ones, and rows that are recorded."""
    results = tuple(
        output.detach() if content is None else make_shell(content)
        for output, content in zip(outputs, contents, strict=True)
    )
    pairs = zip(results, outputs, strict=True)
    ctx.mark_non_differentiable(*(part for part, output in pairs if not output.requires_grad))
    return results


def _adds_up_over_chunks(call: Call, reductions: Sequence[Tensor]) -> bool:
    """Returns whether one pass finds the gradient of a function with plain results.

    That is so where gradients of rows need no sums over all rows, and those of plain arguments are
    such sums. A dry run on a few rows shows it, with NaN for all sums of the gradient.
    """
    generator = torch.Generator().manual_seed(1)
    values: list[Any] = []
    leaves: list[Tensor] = []
    of_rows: list[bool] = []
    for tensor, value in zip(call.tensors, call.probes, strict=True):
        if isinstance(value, PartitionedTensor) and value.is_floating_point():
            local = torch.rand(
                value._local.shape, generator=generator, dtype=torch.float64, device="cpu"
            )
            local = local.to(value._local.device, value._local.dtype)
            value = wrap(local, value.row_layout, value.partitioned_dim)
        if tensor.requires_grad:
            value, leaf = differentiable_value(value)
            leaves.append(leaf)
            of_rows.append(isinstance(value, PartitionedTensor))
        values.append(value)
    rank = call.rank
    with (
        rank.replaying(call.seeds),
        rank.with_reductions(reductions),
        without_hooks(),
        torch._C._EnableTorchFunction(),
    ):
        result = call.func(*fill(call.args, values), **fill(call.kwargs, values))
    outputs = [output for output in distinct_tensors(result) if output.requires_grad]
    ones = [torch.ones_like(output) for output in outputs]
    with rank.reducing(no_number):
        try:
            grads = torch.autograd.grad(outputs, leaves, ones, allow_unused=True)
        except NotImplementedError:
            return False
    if any(
        isinstance(grad, PartitionedTensor) and not is_row
        for grad, is_row in zip(grads, of_rows, strict=True)
    ):
        return False  # a plain operand has met rows, as torch's gradient of it does
    return all(
        grad is None or bool((~grad.isnan()).all() if is_row else grad.isnan().all())
        for grad, is_row in zip(grads, of_rows, strict=True)
    )
