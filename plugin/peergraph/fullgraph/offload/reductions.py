"""Functions over all rows with a plain result: reduced chunk by chunk, then over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.fullgraph.exchange.transport import ReduceOp, Transport
from peergraph.fullgraph.offload.chunk_pass import PassChunk
from peergraph.fullgraph.offload.differentiated import Differentiated
from peergraph.fullgraph.offload.offloaded_tensor import Cell, Content, make_probe
from peergraph.fullgraph.offload.passes import RowPass, value_at
from peergraph.fullgraph.offload.recording import Call, refuse
from peergraph.fullgraph.offload.records import (
    PlainOperand,
    Record,
    RowOperand,
    fill,
    map_nested,
    tensors_in,
)
from peergraph.fullgraph.offload.replay import WHOLE_RESULT, Compiled, Place, Step, run_step
from peergraph.fullgraph.offload.row_segment import history_inputs, is_boundary
from peergraph.fullgraph.offload.virtual_rank import NeedsOtherRowsError, no_number
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap

_REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "prod": torch.mul,
}

# Losses whose weights are multiplied with rows: their gradients are sums over rows.
_ROW_WEIGHTED = {F.cross_entropy, F.nll_loss, F.binary_cross_entropy_with_logits}


class _ReductionReached(Exception):
    """A chunk has given its part of a reduction that is not known yet."""


class Reductions:
    """The reductions of a function over all chunks and ranks, found one in each pass."""

    def __init__(self) -> None:
        self.known: list[Tensor] = []
        """Results, in the order in which the function asks for them."""
        self._next = 0
        self._total: Tensor | None = None
        self._op: ReduceOp = "sum"

    def begin_chunk(self) -> None:
        """The function starts on another chunk."""
        self._next = 0

    def reduce(self, tensor: Tensor, op: ReduceOp) -> Tensor:
        """Returns the result of a known reduction; adds up the chunks' parts of another one."""
        place = self._next
        self._next += 1
        if place < len(self.known):
            return self.known[place].clone()
        part = tensor.detach()
        self._op = op
        self._total = part.clone() if self._total is None else _REDUCE[op](self._total, part)
        raise _ReductionReached

    def end_pass(self, transport: Transport) -> bool:
        """Reduces over the ranks; returns whether the function has all results. Collective."""
        if self._total is None:
            return True
        self.known.append(transport.all_reduce(self._total, self._op))
        self._total = None
        return False


def reduce_over_chunks(call: Call) -> Any:
    """Returns the plain result of a function over all rows. Collective; differentiable.

    Raises:
        NotImplementedError: the result has rows, or the gradient needs sums over all rows.
    """
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.tensors)
    _check_on_probes(call, needs_grad)
    if not needs_grad:
        return _compute(call, Reductions())
    record = Record(call.func, call.args, call.kwargs, call.operands, call.modes, call.seeds)
    content = Content(
        call.space, make_probe(call.space, (), torch.float32), record=record, output=WHOLE_RESULT
    )
    compiled = Compiled([RowOperand(Cell(content, True), None)], is_boundary)
    structure: list[Any] = []
    results = Reduce.apply(  # type: ignore[no-untyped-call]
        call, compiled, structure, *history_inputs(compiled.operands)
    )
    rest = iter(results)
    return map_nested(structure[0], lambda p: next(rest) if isinstance(p, Tensor) else p)


def _compute(call: Call, reductions: Reductions) -> Any:
    rows = [operand for operand in call.operands if isinstance(operand, RowOperand)]
    others = [operand for operand in call.operands if not isinstance(operand, RowOperand)]
    rank = call.rank
    result: list[Any] = []

    while True:
        row_pass = RowPass(call.space, rows)
        slots = dict(zip(map(id, rows), row_pass.outputs, strict=True))

        def visit(
            chunk: PassChunk, place: Place, values: list[Any], slots: dict[int, int] = slots
        ) -> None:
            given = [
                values[slots[id(operand)]]
                if isinstance(operand, RowOperand)
                else value_at(operand, chunk, place)
                for operand in call.operands
            ]
            reductions.begin_chunk()
            try:
                with rank.reducing(reductions.reduce):
                    found = _call(call, given)
            except _ReductionReached:
                return
            result[:] = [found]

        row_pass.run(visit, operands=others)
        if reductions.end_pass(Transport.of(rank.real)):
            break
    if any(isinstance(part, PartitionedTensor) for part in tensors_in(result)):
        refuse(call.name, "each row of the result needs all rows")
    return result[0]


def _call(call: Call, given: Sequence[Any]) -> Any:
    """Returns the result of a call with values in the place of its operands."""
    values = [*given, None]
    outputs = [(WHOLE_RESULT, len(given))]
    seeds = tuple(call.seeds)
    run_step(
        call.rank, Step(call.func, call.args, call.kwargs, call.modes, seeds, None, outputs), values
    )
    return values[-1]


class Reduce(torch.autograd.Function):
    """A function over all rows whose gradient is a function of each row."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, compiled: Compiled, structure: list[Any], *inputs: Tensor | None
    ) -> tuple[Tensor, ...]:
        reductions = Reductions()
        result = _compute(call, reductions)
        structure.append(result)
        ctx.known = reductions.known
        ctx.differentiated = Differentiated(call.space, compiled)
        ctx.differentiated.save(ctx, inputs)
        ctx.set_materialize_grads(False)
        results = tensors_in(result)
        ctx.mark_non_differentiable(*(r for r in results if not r.is_floating_point()))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        found: Differentiated = ctx.differentiated
        reductions = Reductions()
        reductions.known = ctx.known
        first = found.outputs[0]

        def heads(
            chunk: PassChunk, place: Place, computed: Sequence[Any], results: list[Any]
        ) -> tuple[list[Tensor], list[Tensor]]:
            outputs = tensors_in(results[first])
            pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if g is not None]
            return [o for o, _ in pairs], [g for _, g in pairs]

        results = found.backward(ctx, ctx.needs_input_grad[3:], [], heads, reductions)
        return (None, None, None, *results)


def _check_on_probes(call: Call, needs_grad: bool) -> None:
    """Raises NotImplementedError for a function that cannot be reduced chunk by chunk."""
    generator = torch.Generator().manual_seed(1)
    probes = []
    for tensor, probe in zip(call.tensors, call.probes, strict=True):
        if isinstance(probe, PartitionedTensor) and probe.is_floating_point():
            values = torch.rand(probe._local.shape, generator=generator, dtype=torch.float64)
            local = values.to(probe._local.device, probe._local.dtype)
            probe = wrap(local, probe.layout, probe.partitioned_dim)
            probe.requires_grad_(tensor.requires_grad)
        probes.append(probe)
    with call.rank.reducing(lambda tensor, op: tensor), call.rank.recording_seeds() as seeds:
        try:
            result = call.func(*fill(call.args, probes), **fill(call.kwargs, probes))
        except NeedsOtherRowsError:
            refuse(call.name, "it needs the rows of other chunks")
    call.seeds = seeds
    results = tensors_in(result)
    if any(isinstance(part, PartitionedTensor) for part in results):
        refuse(call.name, "each row of the result needs all rows")
    if not needs_grad:
        return
    if call.func not in _ROW_WEIGHTED and any(
        isinstance(operand, PlainOperand) and operand.tensor.requires_grad
        for operand in call.operands
    ):
        refuse(call.name, "a plain argument of a sum over all rows needs a gradient")
    outputs = [part for part in results if part.requires_grad]
    leaves = [p for p in probes if isinstance(p, PartitionedTensor) and p.requires_grad]
    if not outputs or not leaves:
        return
    ones = [torch.ones_like(output) for output in outputs]
    with call.rank.reducing(no_number):
        try:
            found = torch.autograd.grad(outputs, leaves, ones, allow_unused=True)
        except NotImplementedError:
            refuse(call.name, "its gradient needs sums over all rows")
    for grad in found:
        if isinstance(grad, PartitionedTensor) and bool(grad._local.isnan().any()):
            refuse(call.name, "its gradient needs sums over all rows")
