"""Functions of torch on the plain rows of a chunk: the same results as the rules of partitioned
tensors.

Each takes the arguments of the function, with :class:`ChunkRows` in the place of partitioned
tensors, and returns None for arguments that it does not serve: then the rules compute the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.layers.node_scores import node_scores
from peergraph.autograd import Function
from peergraph.fullgraph.offload.tensor.chunk_rows import ChunkRows
from peergraph.fullgraph.random.dropout import drop_rows
from peergraph.fullgraph.random.seeds import Seed
from peergraph.fullgraph.tensor.relu import relu
from peergraph.fullgraph.tensor.row_norms import layer_norm
from peergraph.fullgraph.tensor.sums import mean_dims, sum_dims
from peergraph.fullgraph.tensor.views import reshape

RowFunction = Callable[..., ChunkRows | tuple[ChunkRows, ...] | None]

ROW_FUNCTIONS: dict[Callable[..., Any], RowFunction] = {}
"""By function of torch. A function that draws random numbers is called with the keyword `seeds`."""

RANDOM_FUNCTIONS: set[Callable[..., Any]] = set()
"""Those of :data:`ROW_FUNCTIONS` that take seeds."""

SEVERAL_RESULTS: set[Callable[..., Any]] = {node_scores}
"""Those of :data:`ROW_FUNCTIONS` that return a tuple; others have one result."""

# A gated recurrent unit computes this many parts of a chunk's rows one after the other, unless they
# have fewer rows than the second number: its gates are six rows for each row.
_GATE_PARTS, _LEAST_PART_ROWS = 8, 8192


def _register(*functions: Callable[..., Any]) -> Callable[[RowFunction], RowFunction]:
    def register(run: RowFunction) -> RowFunction:
        for function in functions:
            ROW_FUNCTIONS[function] = run
        return run

    return register


def _pointwise(function: Callable[..., Any]) -> RowFunction:
    """Returns the function for rows of one layout, numbers, and tensors that all rows share."""

    def run(*args: Any, **kwargs: Any) -> ChunkRows | None:
        first: ChunkRows | None = None
        from_end = 0
        local = list(args)
        for place, arg in enumerate(args):
            if type(arg) is ChunkRows:
                if first is None:
                    first, from_end = arg, arg.partitioned_dim - arg.rows.dim()
                elif arg.layout is not first.layout or (
                    arg.partitioned_dim - arg.rows.dim() != from_end
                ):
                    return None
                local[place] = arg.rows
        if first is None:
            return None
        for arg in (*args, *kwargs.values()):
            # A plain tensor must have no rows of its own.
            if isinstance(arg, Tensor) and arg.dim() >= -from_end and arg.shape[from_end] != 1:
                return None
            if type(arg) is not ChunkRows and isinstance(arg, (list, tuple, dict)):
                return None
        if any(type(value) is ChunkRows for value in kwargs.values()):
            return None
        result = function(*local, **kwargs)
        return ChunkRows(result, first.layout, result.dim() + from_end)

    return run


_NAMES = ("add", "sub", "mul", "div", "true_divide", "neg", "abs", "exp", "sigmoid", "tanh",
          "square", "sqrt", "rsqrt", "pow", "addcmul", "where")  # fmt: skip
_POINTWISE: tuple[Callable[..., Any], ...] = (
    *(getattr(torch, name) for name in _NAMES),
    *(getattr(Tensor, name) for name in _NAMES),
    *(Tensor.__radd__, Tensor.__rmul__, Tensor.__rsub__, Tensor.__rtruediv__),
    *(Tensor.__add__, Tensor.__mul__, Tensor.__sub__, Tensor.__truediv__, Tensor.__neg__),
    *(F.leaky_relu, F.elu, F.gelu, F.silu, F.softplus, F.sigmoid, F.tanh),
    *(torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor),
)
for _function in _POINTWISE:
    ROW_FUNCTIONS[_function] = _pointwise(_function)


@_register(F.linear)
def _linear(input: Any, weight: Any, bias: Any = None) -> ChunkRows | None:
    if type(input) is not ChunkRows or input.partitioned_dim == input.dim() - 1:
        return None
    if not isinstance(weight, Tensor) or weight.dim() != 2 or type(bias) is ChunkRows:
        return None
    return input.with_rows(F.linear(input.rows, weight, bias))


@_register(F.relu, torch.relu, Tensor.relu)
def _relu(input: Any, inplace: bool = False) -> ChunkRows | None:
    if type(input) is not ChunkRows or inplace:
        return None
    return input.with_rows(relu(input.rows))


@_register(F.dropout)
def _dropout(
    input: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    seeds: Sequence[Seed],
) -> ChunkRows | None:
    if type(input) is not ChunkRows or inplace or input.partitioned_dim:
        return None
    if not training or p == 0 or input.rows.numel() == 0:
        return input
    if p >= 1 or len(seeds) != 1 or isinstance(seeds[0], Tensor):
        return None
    return input.with_rows(drop_rows(input.rows, p, seeds[0], input.layout.positions))


RANDOM_FUNCTIONS.add(F.dropout)


@_register(torch.gru_cell)
def _gru_cell(input: Any, hx: Any, *parameters: Any) -> ChunkRows | None:
    if type(input) is not ChunkRows or type(hx) is not ChunkRows:
        return None
    if input.layout is not hx.layout or input.dim() != 2 or hx.dim() != 2:
        return None
    if any(type(parameter) is ChunkRows for parameter in parameters):
        return None
    if input.partitioned_dim or hx.partitioned_dim:
        return None
    out: Tensor = _GruCell.apply(input.rows, hx.rows, *parameters)
    return ChunkRows(out, input.layout)


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
            wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
            found = iter(torch.autograd.grad(out, wanted, grad[part]))
            for rows in of_rows:
                if rows is not None:
                    rows[part] = next(found)
            for total in sums:
                if total is not None:
                    total += next(found)
        return (*of_rows, *sums)


def _gate_parts(rows: int) -> list[slice]:
    count = max(1, min(_GATE_PARTS, rows // _LEAST_PART_ROWS))
    step = max(1, -(-rows // count))
    return [slice(start, start + step) for start in range(0, rows, step)]


@_register(Tensor.view, Tensor.reshape, torch.reshape)
def _view(input: Any, *sizes: Any, **kwargs: Any) -> ChunkRows | None:
    size = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    if type(input) is not ChunkRows or kwargs or not size:
        return None
    if not all(type(part) is int for part in size):
        return None
    return reshape(input, size)  # type: ignore[arg-type,return-value]


@_register(Tensor.flatten, torch.flatten)
def _flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> ChunkRows | None:
    if type(input) is not ChunkRows or input.partitioned_dim or start_dim % input.dim() == 0:
        return None
    return input.with_rows(input.rows.flatten(start_dim, end_dim))


@_register(node_scores)
def _node_scores(h: Any, *vectors: Any) -> tuple[ChunkRows, ...] | None:
    if type(h) is not ChunkRows or h.partitioned_dim:
        return None
    if any(type(vector) is ChunkRows for vector in vectors):
        return None
    return tuple(ChunkRows(part, h.layout) for part in node_scores(h.rows, *vectors))


def _row_reduction(rule: Callable[..., Any]) -> RowFunction:
    """Returns the rule for reductions of other dimensions than that of rows."""

    def run(input: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> ChunkRows | None:
        if type(input) is not ChunkRows or type(dim) is not int or kwargs:
            return None
        if dim % input.dim() == input.partitioned_dim:
            return None
        return rule(input, [dim], keepdim)  # type: ignore[no-any-return]

    return run


_register(torch.sum, Tensor.sum)(_row_reduction(sum_dims))
_register(torch.mean, Tensor.mean)(_row_reduction(mean_dims))


@_register(F.layer_norm)
def _layer_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None,
    eps: float = 1e-5,
) -> ChunkRows | None:  # fmt: skip
    if type(input) is not ChunkRows:
        return None
    return layer_norm(input, normalized_shape, weight, bias, eps)[0]  # type: ignore[return-value]
