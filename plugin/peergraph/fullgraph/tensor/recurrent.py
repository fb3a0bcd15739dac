"""Recurrent networks: each row is a sequence, so all steps are local."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from peergraph.autograd import Function
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.arguments import not_implemented, require_same_rows
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows
from peergraph.fullgraph.tensor.conversions import distribute, from_local, replicated_together
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.registry import FUNCTION_RULES, chunk_rule

_STATE_DIM = 1  # of states [layers, rows, features]


def _network(
    function: Callable[..., Any],
    input: Any,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """An LSTM, GRU or RNN over sequences, one for each row."""
    name = function.__name__
    rows_dim = 0 if batch_first else 1
    if not isinstance(input, PartitionedTensor) or not isinstance(params, (list, tuple)):
        not_implemented(name, "the input is plain or packed")
    if input.partitioned_dim != rows_dim or input.dim() != 3:
        not_implemented(name, "steps of sequences are partitioned")
    if dropout and train and num_layers > 1:
        not_implemented(name, "dropout between layers depends on the number of ranks")
    layout = input.row_layout
    states = hx if isinstance(hx, tuple) else (hx,)
    local_states = tuple(_local(name, state, layout, _STATE_DIM) for state in states)
    results = function(
        input.to_local(),
        local_states if isinstance(hx, tuple) else local_states[0],
        list(replicated_together(layout.group, *params)),
        has_biases,
        num_layers,
        dropout,
        train,
        bidirectional,
        batch_first,
    )
    out, *last = results
    return (
        from_local(out, layout, rows_dim),
        *(from_local(state, layout, _STATE_DIM) for state in last),
    )


def _cell(function: Callable[..., Any], input: Any, hx: Any, *params: Tensor | None) -> Any:
    """One step of an LSTM, GRU or RNN for each row."""
    name = function.__name__
    states = hx if isinstance(hx, (list, tuple)) else (hx,)
    first = next((x for x in (input, *states) if isinstance(x, PartitionedTensor)), None)
    if first is None:
        not_implemented(name, "parameters are partitioned")
    layout = first.row_layout
    local_states = [_local(name, state, layout, 0) for state in states]
    new_states = function(
        _local(name, input, layout, 0),
        local_states if isinstance(hx, (list, tuple)) else local_states[0],
        *replicated_together(layout.group, *params),
    )
    if isinstance(new_states, Tensor):
        return from_local(new_states, layout)
    return tuple(from_local(state, layout) for state in new_states)


def _local(name: str, x: Tensor, layout: RowLayout, dim: int) -> Tensor:
    """This rank's rows; of a plain tensor of all rows too, such as the zeros that torch makes."""
    if not isinstance(x, PartitionedTensor):
        return distribute(x, layout, dim).to_local()
    if x.partitioned_dim != dim and layout.size == x.row_layout.size == x.shape[dim] == 1:
        moved = x.transpose(x.partitioned_dim, dim)  # new_zeros(1, 1, width)
        assert isinstance(moved, PartitionedTensor)
        x = moved
    if x.partitioned_dim != dim:
        not_implemented(name, "features are partitioned")
    require_same_rows(name, layout, x.row_layout)
    return x.to_local()


_NETWORKS: list[Callable[..., Any]] = [torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu]
_CELLS: list[Callable[..., Any]] = [
    *(torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell),
]
FUNCTION_RULES.update({function: partial(_network, function) for function in _NETWORKS})
FUNCTION_RULES.update({function: partial(_cell, function) for function in _CELLS})


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
