"""A step of a gated recurrent unit on the rows of a chunk, in the memory of a part of its gates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.autograd import Function
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows
from peergraph.fullgraph.tensor.registry import chunk_rule

# A gated recurrent unit computes this many parts of a chunk's rows one after the other, unless they
# have fewer rows than the second number: its gates are six rows for each row.
_GATE_PARTS, _LEAST_PART_ROWS = 8, 8192


@chunk_rule(torch.gru_cell)
def _gru_cell(input: Any, hx: Any, *parameters: Any) -> ChunkRows | None:
    if type(input) is not ChunkRows or type(hx) is not ChunkRows:
        return None
    if input.row_layout is not hx.row_layout or input.dim() != 2 or hx.dim() != 2:
        return None
    if any(type(parameter) is ChunkRows for parameter in parameters):
        return None
    if input.partitioned_dim or hx.partitioned_dim:
        return None
    out: Tensor = _GruCell.apply(input.rows, hx.rows, *parameters)
    return ChunkRows(out, input.row_layout)


class _GruCell(Function):
    """A step of a gated recurrent unit of plain rows; backward makes the gates again.

    The rows are computed part by part, so that a part's gates are in memory and not all of them.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, hx: Tensor, *parameters: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, hx, *parameters)
        out = torch.empty_like(hx)
        for part in _gate_parts(len(hx)):
            out[part] = torch.gru_cell(input[part], hx[part], *parameters)  # type: ignore[arg-type]
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, hx, *parameters = ctx.saved_tensors
        needs = ctx.needs_input_grad
        of_rows = [torch.empty_like(rows) if need else None
                   for rows, need in zip((input, hx), needs, strict=False)]  # fmt: skip
        sums: list[Tensor | None] = [
            torch.zeros_like(parameter) if need else None
            for parameter, need in zip(parameters, needs[2:], strict=True)
        ]
        for part in _gate_parts(len(hx)):
            values = [input[part], hx[part], *parameters]
            with torch.enable_grad():
                leaves = [
                    value if value is None else value.detach().requires_grad_(need)
                    for value, need in zip(values, needs, strict=True)
                ]
                out = torch.gru_cell(*leaves)  # type: ignore[arg-type]
            inputs = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
            grads = iter(torch.autograd.grad(out, inputs, grad[part]))
            for rows in of_rows:
                if rows is not None:
                    rows[part] = next(grads)
            for total in sums:
                if total is not None:
                    total += next(grads)
        return (*of_rows, *sums)


def _gate_parts(rows: int) -> list[slice]:
    count = max(1, min(_GATE_PARTS, rows // _LEAST_PART_ROWS))
    step = max(1, -(-rows // count))
    return [slice(start, start + step) for start in range(0, rows, step)]
