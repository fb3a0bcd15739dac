"""Users' messages on a GPU: compiled at run time through CuPy, launched on torch's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.aggregate.messages.cuda_source import source
from peergraph.aggregate.messages.expression import SYMBOLS, Expression, parse
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.aggregate.sparse.index_tensors import row_of_edges
from peergraph.memory.device.cupy_stream import cupy_stream
from peergraph.memory.table.kernel_argument import as_argument

_BLOCK = 256
_MAX_BLOCKS = 1 << 20
_OPTIONS = ("-std=c++17",)
_CPP = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int32: "int",
    torch.int64: "long long",
}


@cache
def has_cupy() -> bool:
    """Returns whether CuPy is installed."""
    try:
        import cupy  # noqa: F401
    except ImportError:
        return False
    return True


@cache
def _module(text: str, reduce: str, types: tuple[tuple[str, str], ...]) -> Any:
    """Returns the compiled kernels; CuPy compiles at first use and keeps the result on disk."""
    import cupy

    return cupy.RawModule(code=source(parse(text), reduce, dict(types)), options=_OPTIONS)


@dataclass(frozen=True)
class Launcher:
    """The kernels of one message over one structure and operands of one dtype.

    Args:
        matrix: the structure.
        operands: by symbol, [rows, columns or a divisor of them], contiguous, float32 or float64.
        columns: of a message.
    """

    expression: Expression
    reduce: str
    matrix: EdgeMatrix
    operands: Mapping[str, Tensor]
    columns: int

    def forward(self) -> tuple[Tensor, Tensor | None]:
        """Returns the result [rows, columns], and for extrema the position of each or -1."""
        matrix = self.matrix
        like = next(iter(self.operands.values()))
        out = like.new_empty(matrix.num_destinations, self.columns)
        arg = None
        if self.reduce in ("max", "min"):
            arg = torch.empty_like(out, dtype=matrix.indptr.dtype)
        self._launch("reduce", out.numel(), [*self._common(matrix.num_destinations), out, arg])
        return out, arg

    def gradient(self, symbol: str, grad: Tensor, arg: Tensor | None) -> Tensor:
        """Returns the gradient of one operand, of its shape."""
        matrix = self.matrix
        operand = self.operands[symbol]
        group = self.columns // operand.shape[1]
        if SYMBOLS[symbol] == "edges":
            lanes = min(32, 1 << (group - 1).bit_length())
            out = torch.empty_like(operand)
            row_of = row_of_edges(matrix.indptr, matrix.num_edges, matrix.indptr.dtype)
            first = [_struct(matrix.indptr, matrix.indices, matrix.edge_ids), row_of]
            arguments = [*first, *self._sizes(matrix.num_edges), grad, arg, np.int32(lanes), out]
            self._launch(f"grad_{symbol}", operand.numel() * lanes, arguments)
            return out
        full = grad.new_empty(operand.shape[0], self.columns)
        arguments = [_struct(matrix.indptr, matrix.indices, matrix.edge_ids)]
        if SYMBOLS[symbol] == "sources":
            indptr, destinations, positions = self.matrix.transpose_tensors()
            arguments.append(_struct(indptr, destinations, positions))
        arguments += [*self._sizes(operand.shape[0]), grad, arg, full]
        self._launch(f"grad_{symbol}", full.numel(), arguments)
        return full if group == 1 else full.view(*operand.shape, group).sum(-1)

    def _common(self, count: int) -> list[Any]:
        matrix = self.matrix
        return [_struct(matrix.indptr, matrix.indices, matrix.edge_ids), *self._sizes(count)]

    def _sizes(self, count: int) -> list[Any]:
        """Returns the number of rows, the number of columns, and the operands."""
        operands = (self.operands[name] for name in self.expression.symbols)
        return [
            np.int64(count),
            np.int64(self.columns),
            *(_struct(o, o.shape[1], self.columns // o.shape[1]) for o in operands),
        ]

    def _launch(self, name: str, threads: int, arguments: list[Any]) -> None:
        if threads == 0:
            return
        blocks = min(-(-threads // _BLOCK), _MAX_BLOCKS)
        passed = tuple(_pointer(a) if a is None or isinstance(a, Tensor) else a for a in arguments)
        with cupy_stream(self.matrix.device):
            kernel = _module(self.expression.text, self.reduce, self._types()).get_function(name)
            kernel((blocks,), (_BLOCK,), passed)

    def _types(self) -> tuple[tuple[str, str], ...]:
        matrix = self.matrix
        edge_ids = matrix.indptr if matrix.edge_ids is None else matrix.edge_ids
        real = next(iter(self.operands.values())).dtype
        return (
            ("real", _CPP[real]),
            ("offset_t", _CPP[matrix.indptr.dtype]),
            ("index_t", _CPP[matrix.indices.dtype]),
            ("edge_t", _CPP[edge_ids.dtype]),
            # The transpose keeps the dtype of the sources for its destinations.
            ("row_t", _CPP[matrix.indices.dtype]),
        )


def _pointer(tensor: Tensor | None) -> Any:
    return np.uint64(_address(tensor))


def _struct(*fields: Tensor | int | None) -> np.ndarray[Any, Any]:
    """Returns pointers and sizes as a struct that CuPy passes by value."""
    words = [_address(f) if f is None or isinstance(f, Tensor) else f for f in fields]
    return as_argument(np.array(words, dtype=np.uint64).tobytes())


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
