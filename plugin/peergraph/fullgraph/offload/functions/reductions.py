"""Functions that need sums over all rows: the sums are found chunk by chunk, one in each pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.replicas import Replicas
from peergraph.fullgraph.exchange.transport import ReduceOp, Transport
from peergraph.fullgraph.offload.functions.recording import Call, refuse
from peergraph.fullgraph.offload.functions.reduction_gradients import differentiable_results
from peergraph.fullgraph.offload.gradients.program_gradients import differentiable_value
from peergraph.fullgraph.offload.passes.chunk_pass import PassChunk
from peergraph.fullgraph.offload.programs.program import WHOLE_RESULT, Place, Step
from peergraph.fullgraph.offload.programs.record import (
    Record,
    RowOperand,
)
from peergraph.fullgraph.offload.programs.row_pass import RowPass, store_required, value_at
from peergraph.fullgraph.offload.tensor.offloaded_tensor import (
    Content,
    OffloadedTensor,
    detached,
    make_shell,
)
from peergraph.fullgraph.offload.tensor.operations import Operation, Slot
from peergraph.fullgraph.offload.tensor.virtual_rank import NeedsOtherRowsError, VirtualRank
from peergraph.fullgraph.tensor.nested import distinct_tensors, map_nested, tensors_in
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.registry import METHODS, method

_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": Tensor.add,
    "max": Tensor.maximum,
    "min": Tensor.minimum,
    "prod": Tensor.mul,
}


class _ReductionReached(Exception):
    """The function asks for a reduction that is not known yet."""


class WithReductions:
    """A function whose reductions over all rows are known.

    Args:
        rank: whose reductions they are.
        func: the function.
        reductions: results of its first reductions, in the order in which it asks for them.
    """

    def __init__(
        self, rank: VirtualRank, func: Callable[..., Any], reductions: Sequence[Tensor]
    ) -> None:
        self.__name__ = getattr(func, "__name__", str(func))
        self.rank = rank
        self.func = func
        self.reductions = reductions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function."""
        with self.rank.with_reductions(self.reductions):
            return self.func(*args, **kwargs)


@method("reduce over chunks")
def reduce_over_chunks(call: Call) -> Any:
    """Returns the result of a function that needs sums over all rows. Collective; differentiable.

    Plain results are computed. Results with rows are recorded: with the sums, each row is computed
    from the same row. A function that needs other rows, but of single columns, runs on the device.

    Raises:
        NotImplementedError: the function needs other rows, but not as sums, maxima or the like.
    """
    func = call.func
    if call.changes:
        call.func = _OnCopies(func)
    try:
        result, reductions = find_reductions(call)
    except NeedsOtherRowsError:
        if call.changes or not all(map(_is_column, call.tensors)):
            refuse(call.name, "it needs the rows of other chunks")
        args, kwargs = map_nested((call.args, call.kwargs), partial(_on_device, call))
        return func(*args, **kwargs)
    if any(isinstance(call.tensors[place], OffloadedTensor) for place in call.changed()):
        refuse(call.name, "rows are changed in place by sums over all rows")
    outputs = distinct_tensors(result)
    contents = row_results(call, reductions, result, outputs)
    results: Sequence[Tensor]
    if any(output.requires_grad for output in outputs):
        results = differentiable_results(call, reductions, outputs, contents)
    else:
        results = [
            output if content is None else make_shell(content)
            for output, content in zip(outputs, contents, strict=True)
        ]
    by_output = {id(output): part for output, part in zip(outputs, results, strict=True)}
    if call.changes:
        result, copies = result
        for tensor, copy in zip(_plain(call.tensors), copies, strict=True):
            if copy is not None:
                by_output[id(copy)] = tensor.copy_(by_output[id(copy)])
    return map_nested(result, lambda part: by_output.get(id(part), part))


def _is_column(tensor: Tensor) -> bool:
    return not isinstance(tensor, OffloadedTensor) or tensor.numel() == tensor.row_layout.size


def _on_device(call: Call, value: Any) -> Any:
    if type(value) is not Slot:
        return value
    tensor = call.tensors[value.place]
    is_offloaded = isinstance(tensor, OffloadedTensor)
    return METHODS["offloaded values on device"](tensor) if is_offloaded else tensor


def find_reductions(call: Call) -> tuple[Any, list[Tensor]]:
    """Returns the result of a call on its probes, and the results of the reductions. Collective.

    Each pass over the rows finds one. The plain parts of the result are right: they depend on
    nothing but the reductions.
    """
    reductions: list[Tensor] = []
    while True:
        try:
            with call.rank.reducing(_reached), call.rank.with_reductions(reductions):
                return call.run_on_probes(), reductions
        except _ReductionReached:
            reductions.append(_reduce_next(call, reductions))


def _reached(tensor: Tensor, op: ReduceOp) -> Tensor:
    raise _ReductionReached


def _reduce_next(call: Call, reductions: Sequence[Tensor]) -> Tensor:
    """Returns the result of the first unknown reduction, found in one pass. Collective."""
    rank = call.rank
    rows = [operand for operand in call.operands if isinstance(operand, RowOperand)]
    store_required(rows)
    row_pass = RowPass(call.space, rows)
    slots = dict(zip(map(id, rows), row_pass.outputs, strict=True))
    count = len(call.operands)
    step = Step(call.operation(), range(count), [(WHOLE_RESULT, count)])
    total: Tensor | None = None
    operation: ReduceOp = "sum"

    def add(part: Tensor, op: ReduceOp) -> Tensor:
        nonlocal total, operation
        operation = op
        total = part.detach().clone() if total is None else _COMBINE[op](total, part.detach())
        raise _ReductionReached

    def visit(chunk: PassChunk, place: Place, values: list[Any]) -> None:
        arguments = []
        for operand, tensor in zip(call.operands, call.tensors, strict=True):
            is_row = isinstance(operand, RowOperand)
            value = values[slots[id(operand)]] if is_row else value_at(operand, chunk, place)
            # Some functions ask for further sums where gradients are wanted.
            arguments.append(differentiable_value(value)[0] if tensor.requires_grad else value)
        try:
            with torch.enable_grad(), rank.reducing(add), rank.with_reductions(reductions):
                step.run(rank, [*arguments, None], tuple(call.seeds))
        except _ReductionReached:
            return

    others = [operand for operand in call.operands if not isinstance(operand, RowOperand)]
    row_pass.run(visit, operands=others)
    if total is None:
        raise RuntimeError(f"{call.name}: the rows of a chunk ask for other sums than few rows")
    Replicas.of(rank.real).compare()
    return Transport.of(rank.real).all_reduce(total, operation)


def row_results(
    call: Call, reductions: Sequence[Tensor], result: Any, outputs: Sequence[Tensor]
) -> list[Content | None]:
    """Returns what is recorded for each output that has rows; None for plain ones.

    Args:
        call: the call.
        reductions: its reductions.
        result: on the probes.
        outputs: tensors of `result`.
    """
    func = WithReductions(call.rank, call.func, reductions)
    operation = Operation(func, call.args, call.kwargs, call.modes)
    record = Record(operation, call.operands, call.seeds)
    places = [id(part) for part in tensors_in(result)]
    return [
        Content(
            call.space_of(output),
            detached(output),
            record=record,
            output=places.index(id(output)),
        )
        if isinstance(output, PartitionedTensor)
        else None
        for output in outputs
    ]


class _OnCopies:
    """A function that may change its plain arguments, run on copies of them.

    It returns the function's result, and for each plain argument the copy, or None if the copy was
    not changed.
    """

    def __init__(self, func: Callable[..., Any]) -> None:
        self.__name__ = getattr(func, "__name__", str(func))
        self.func = func

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, list[Tensor | None]]:
        has_grad = torch.is_grad_enabled()
        # Tensors that are made in inference mode do not count their changes.
        with torch.inference_mode(False), torch.set_grad_enabled(has_grad):
            copies = {id(tensor): tensor.clone() for tensor in _plain((args, kwargs))}
        versions = [copy._version for copy in copies.values()]

        def copied(part: Any) -> Any:
            return copies.get(id(part), part)

        result = self.func(*map_nested(args, copied), **map_nested(kwargs, copied))
        return result, [
            None if copy._version == version else copy
            for copy, version in zip(copies.values(), versions, strict=True)
        ]


def _plain(tensors: Any) -> list[Tensor]:
    return [part for part in distinct_tensors(tensors) if not isinstance(part, PartitionedTensor)]
