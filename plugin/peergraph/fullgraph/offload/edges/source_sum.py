"""Sums at sources of what a function computes for the edges from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from peergraph.fullgraph.offload.edges.edge_recorder import EdgeRecorder
from peergraph.fullgraph.offload.functions.gathering import store_resident
from peergraph.fullgraph.offload.gradients.segment import (
    compile_history,
    differentiable_program,
    row_operand,
)
from peergraph.fullgraph.offload.passes.chunk_pass import PassChunk
from peergraph.fullgraph.offload.programs.program import Place
from peergraph.fullgraph.offload.programs.record import RowOperand, SourceOperand
from peergraph.fullgraph.offload.programs.row_pass import RowPass, store_rows, value_at
from peergraph.fullgraph.offload.tensor.offloaded_tensor import (
    Cell,
    Content,
    OffloadedTensor,
    from_store,
)
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor


def source_sum(recorder: EdgeRecorder, content: Content, needs_grad: bool) -> OffloadedTensor:
    """Returns rows of sources, which are computed at once. Collective; differentiable.

    The parts of all chunks and ranks are added up in a fixed order. The whole result of the record
    of `content` are rows of the sources of a chunk.
    """
    if not needs_grad:
        return _compute(recorder, content)
    compiled = compile_history([RowOperand(Cell(content, True), None)])
    [slot] = compiled.recipe.outputs

    def differentiate(grad: Tensor) -> dict[str, Any]:
        if not isinstance(grad, OffloadedTensor):
            assert isinstance(grad, PartitionedTensor)
            grad = store_resident(recorder.sources, grad)
        rows = SourceOperand(row_operand(grad), recorder.structure)
        store_rows([rows.rows])

        def heads(
            chunk: PassChunk, place: Place, computed: Sequence[Any], results: list[Any]
        ) -> tuple[list[Tensor], list[Tensor]]:
            output = results[slot]
            at_sources = value_at(rows, chunk, place).rows
            return [output], [at_sources.to(output.dtype)]

        return {"heads": heads, "further": [rows]}

    result: OffloadedTensor = differentiable_program(
        recorder.destinations,
        compiled,
        lambda ctx: (_compute(recorder, content), ()),
        differentiate,
    )
    return result


def _compute(recorder: EdgeRecorder, content: Content) -> OffloadedTensor:
    space, structure = recorder.sources, recorder.structure
    row_pass = RowPass(recorder.destinations, [RowOperand(Cell(content, False), None)])
    [slot] = row_pass.outputs
    store = space.allocator.allocate(
        space.row_layout, content.features, content.dtype, "source", narrow=True
    )

    def visit(chunk: PassChunk, place: Place, values: list[Any]) -> None:
        chunk.add_source_gradients(store, values[slot], structure)

    row_pass.run(visit, gradients=[(store, structure)])
    return from_store(space, store)
