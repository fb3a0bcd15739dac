"""Messages that users write: an expression of the features of an edge and of its ends."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from peergraph.aggregate.kernels.torch_operator import is_traced
from peergraph.aggregate.messages.expression import Expression, parse, rows_of
from peergraph.aggregate.messages.launcher import Launcher, has_cupy
from peergraph.aggregate.ops.gradient_checks import once_differentiable
from peergraph.aggregate.ops.operands import (
    autocast,
    check_operand,
    check_same_dtype,
    columns,
    flat,
    is_prefix,
)
from peergraph.aggregate.ops.spmm import REDUCTIONS, Sum, spmm
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.autograd import Function
from peergraph.memory.device.plain_tensor import dense


class MessageReducer(Protocol):
    """The methods of a structure that messages use."""

    def fuses_messages(self) -> bool:
        """Returns whether messages are reduced by one kernel."""
        ...

    def reduce_message(self, message: Message, operands: Mapping[str, Tensor | None]) -> Tensor:
        """Returns the reduced messages of each destination."""
        ...


def fuses_messages(matrix: EdgeMatrix) -> bool:
    """Returns whether messages over the matrix are reduced by one kernel: on a GPU, with CuPy."""
    return matrix.device.type == "cuda" and has_cupy() and not is_traced()


class Message:
    """A compiled message; made by :func:`message`."""

    def __init__(self, expression: Expression, reduce: str) -> None:
        self._expression = expression
        self.reduce = reduce

    @property
    def expression(self) -> str:
        """The text of the expression."""
        return self._expression.text

    def is_fused(self, csc: MessageReducer) -> bool:
        """Returns whether calls over this structure run as one kernel: on a GPU, with CuPy."""
        return csc.fuses_messages()

    def __call__(
        self,
        csc: MessageReducer,
        *,
        u: Tensor | None = None,
        v: Tensor | None = None,
        e: Tensor | None = None,
        w: Tensor | None = None,
    ) -> Tensor:
        """Reduces the messages of each destination's edges (WholeGraph III-C4).

        Args:
            csc: the structure; its device is that of all.
            u: [sources, *features], for the source of an edge.
            v: [destinations, *features], for its destination.
            e, w: [edges, *features], for the edge, in the order of the structure's edge ids.

        All that occur in the expression, of one dtype: float32, float64, float16 or bfloat16.
        Features are broadcast from the first dimension on: trailing dimensions may be left out or
        be 1, so a scalar [edges] goes with rows of any shape.

        Returns:
            [destinations, *features]; zeros where there are no edges. float16 and bfloat16 are
            computed in float32. On a GPU with CuPy messages are never written to memory, neither
            forward nor backward, gradients are summed in a fixed order, and one derivative can be
            taken; else operations of torch make the messages, [edges, *features].

        Asynchronous on a GPU, but for compiling (at the first call for the dtypes; kept on disk)
        and for the making of the transpose.

        Raises:
            ValueError: an operand missing or not used, shapes or devices that do not go together.
            TypeError: dtypes that are not supported or differ.
        """
        return csc.reduce_message(self, {"u": u, "v": v, "e": e, "w": w})

    def reduce_over(self, matrix: EdgeMatrix, tensors: Mapping[str, Tensor | None]) -> Tensor:
        """Reduces the messages of each row of a matrix.

        Args:
            matrix: the edges.
            tensors: operands by symbol, as for :meth:`__call__`.
        """
        operands = self._checked(matrix, tensors)
        features = _features({name: tuple(o.shape[1:]) for name, o in operands.items()})
        values = {name: _matrix(o, features) for name, o in operands.items()}
        num_columns = columns(features)
        if fuses_messages(matrix) and num_columns and matrix.num_edges:
            result = self._fused(matrix, values, num_columns)
        else:
            result = self._plain(matrix, values, num_columns)
        return result.reshape(matrix.num_destinations, *features)

    def _checked(
        self, matrix: EdgeMatrix, tensors: Mapping[str, Tensor | None]
    ) -> dict[str, Tensor]:
        rows = {
            "sources": matrix.num_sources,
            "destinations": matrix.num_destinations,
            "edges": matrix.num_edges,
        }
        operands, symbols = {}, self._expression.symbols
        for name in dict.fromkeys((*tensors, *symbols)):
            operand = tensors.get(name)
            if (operand is not None) != (name in symbols):
                state = "does not use" if operand is not None else "needs"
                raise ValueError(f"message {self.expression!r} {state} {name}")
            if operand is not None:
                what = rows_of(name)
                check_operand(name, operand, matrix.device, rows[what], what)
                operands[name] = operand
        cast = {name: autocast(operand) for name, operand in operands.items()}
        check_same_dtype(**cast)
        return {name: operand for name, operand in cast.items() if operand is not None}

    def _plain(self, matrix: EdgeMatrix, values: Mapping[str, Tensor], num_columns: int) -> Tensor:
        """Returns messages made by torch, reduced by g-SpMM in the same order as in the kernel."""
        sources, destinations = matrix.edge_ends()
        ends = {"sources": sources, "destinations": destinations}
        dtype = next(iter(values.values())).dtype
        at_edges = {}
        for name, value in values.items():
            rows = rows_of(name)
            narrow = _wide(value if rows == "edges" else value[ends[rows]])
            group = num_columns // max(1, narrow.shape[1])
            full = narrow.unsqueeze(2).expand(-1, -1, group)
            at_edges[name] = full.reshape(matrix.num_edges, num_columns)
        messages = self._expression.evaluate(at_edges)
        return spmm(matrix, Sum("copy_e", self.reduce, e=messages)).to(dtype)

    def _fused(self, matrix: EdgeMatrix, values: Mapping[str, Tensor], num_columns: int) -> Tensor:
        dtype = next(iter(values.values())).dtype
        wide = map(_wide, values.values())
        reduced: Tensor = _Fused.apply(self, matrix, num_columns, tuple(values), *wide)
        return reduced.to(dtype)

    def __repr__(self) -> str:
        return f"message({self.expression!r}, reduce={self.reduce!r})"


@cache
def message(expression: str, reduce: str = "sum") -> Message:
    """Returns a message that is computed for each edge and reduced at its destination.

    ``message("relu(u * w + v)", reduce="mean")(csc, u=x, v=y, w=weights)``

    Calls of a message can be compiled by ``torch.compile`` in one graph; making one cannot.

    Args:
        expression: of ``u`` (features of the source), ``v`` (of the destination), ``e`` and ``w``
            (of the edge), numbers, ``+ - * / **`` and relu, leaky_relu (slope 0.01, or a constant
            as second argument), exp, log, tanh, sigmoid, sqrt, abs, min, max (of two).
        reduce: ``sum``, ``mean``, ``max`` or ``min``. Of several edges with the extremum, the
            first has the gradient.

    Raises:
        ValueError: what the language does not know, by name; an unknown reduction.
        TypeError: an expression that is no string.
    """
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce must be one of {', '.join(REDUCTIONS)}, got {reduce!r}")
    return Message(parse(expression), reduce)


class _Fused(Function):
    """The reduction on a GPU; operands are matrices as the launcher takes them."""

    @staticmethod
    def forward(
        ctx: Any,
        of: Message,
        matrix: EdgeMatrix,
        num_columns: int,
        names: tuple[str, ...],
        *tensors: Tensor,
    ) -> Tensor:
        operands = dict(zip(names, (dense(t.detach()) for t in tensors), strict=True))
        launcher = Launcher(of._expression, of.reduce, matrix, operands, num_columns)
        out, arg = launcher.forward()
        ctx.of, ctx.matrix, ctx.num_columns, ctx.names = of, matrix, num_columns, names
        ctx.save_for_backward(arg, *operands.values())
        return out

    @staticmethod
    @once_differentiable("a message of the user on a GPU")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        arg, *saved = ctx.saved_tensors
        operands = dict(zip(ctx.names, saved, strict=True))
        launcher = Launcher(
            ctx.of._expression, ctx.of.reduce, ctx.matrix, operands, ctx.num_columns
        )
        grad = dense(grad)
        needs = zip(ctx.names, ctx.needs_input_grad[4:], strict=True)
        gradients = [launcher.gradient(name, grad, arg) if need else None for name, need in needs]
        return (None, None, None, None, *gradients)


def _features(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the shape that rows broadcast to, from the first dimension on."""
    rank = max(len(shape) for shape in shapes.values())
    full = [(*shape, *(1,) * (rank - len(shape))) for shape in shapes.values()]
    try:
        return tuple(torch.broadcast_shapes(*full))  # type: ignore[no-untyped-call]
    except RuntimeError:
        texts = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ValueError(
            f"rows must go together from the first dimension on, got {texts}"
        ) from None


def _matrix(operand: Tensor, features: tuple[int, ...]) -> Tensor:
    """Returns a matrix [rows, values]; a value serves consecutive columns of the message."""
    shape = tuple(operand.shape[1:])
    if not is_prefix(shape, features):
        rank = len(features) - len(shape)
        operand = operand.reshape(*operand.shape, *(1,) * rank).expand(-1, *features)
    return flat(operand)


def _wide(values: Tensor) -> Tensor:
    """Returns the values in the dtype that messages are computed in."""
    return values if values.dtype == torch.float64 else values.float()
