"""`TracedStructure`: what layers run over while torch.compile traces them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.kernels.arguments import sum_dtype
from peergraph.aggregate.kernels.attention import AttentionInputs
from peergraph.aggregate.messages.message import Message
from peergraph.aggregate.ops.attention import AttentionSum, depth_for
from peergraph.aggregate.ops.operands import align, autocast, columns, flat, view_if_aliased
from peergraph.aggregate.ops.sddmm import expand
from peergraph.aggregate.ops.spmm import Sum
from peergraph.aggregate.ops.spmm_add_self import SumAddSelf
from peergraph.aggregate.ops.spmm_linear import SumLinear
from peergraph.aggregate.sparse.edge_matrix import Backward
from peergraph.aggregate.structure import Structure
from peergraph.aggregate.traced.edge_values import (
    traced_attention,
    traced_edge_softmax,
    traced_in_degrees,
    traced_sddmm,
    traced_self_loops,
)
from peergraph.aggregate.traced.edges import TracedEdges
from peergraph.aggregate.traced.products import traced_spmm_linear
from peergraph.aggregate.traced.sums import traced_spmm, traced_spmm_add_self, traced_spmm_minmax
from peergraph.memory import TableRows

_Result = TypeVar("_Result")


class TracedStructure(Structure):
    """Edges whose structure compiled code looks up when it runs.

    It has what layers of one graph need; operations are operators of torch. The structure that is
    found is that of :func:`peergraph.aggregate.Csc`, so results and gradients are the same as
    without a compiler.

    Args:
        finder: name of the function that finds structures: see :func:`register_finder`.
        edge_index: [2, edges] int32 or int64.
        num_destinations, num_sources: bounds of its two rows.
        edge_type, relation: [edges] and the one whose edges are meant; None: all edges.
    """

    transient = True

    def __init__(
        self,
        finder: str,
        edge_index: Tensor,
        num_destinations: int,
        num_sources: int,
        *,
        edge_type: Tensor | None = None,
        relation: int | None = None,
    ) -> None:
        relations = [] if relation is None else [relation]
        self._edges = TracedEdges(
            finder, edge_index, edge_type, relations, num_destinations, num_sources
        )

    @property
    def num_sources(self) -> int:
        """Returns the number of sources. Features of sources have one row for each."""
        return self._edges.num_sources

    @property
    def num_destinations(self) -> int:
        """Returns the number of destinations: the rows of their features and of results."""
        return self._edges.num_destinations

    @property
    def num_edges(self) -> int:
        """Returns the number of edges of all relations. Features of edges have one row for each."""
        return self._edges.num_edges

    @property
    def device(self) -> torch.device:
        """Device of features."""
        return self._edges.edge_index.device

    def cached(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """Returns ``make()``: compiled code makes it in each call."""
        return make()

    def in_degrees(self) -> Tensor:
        """Returns the number of edges to each destination, [destinations]."""
        return traced_in_degrees(self._edges)

    def count_self_loops(self, dtype: torch.dtype) -> Tensor:
        """Returns the number of edges from source i to destination i, [destinations]."""
        return traced_self_loops(self._edges, dtype)

    def out_degrees(self) -> NoReturn:
        """Raises ``NotImplementedError``."""
        raise NotImplementedError("torch.compile: out_degrees of a traced structure")

    def reduce(self, of: Sum) -> Tensor:
        """Reduces messages at destinations: see :meth:`spmm`.

        ``dot`` and rows of tables are not among the operands.
        """
        message, reduce, x, e = of[:4]
        if of != Sum(message, reduce, x, e):
            raise NotImplementedError(f"torch.compile: sums with {of.settings()}")
        assert not isinstance(x, TableRows)
        x, e = autocast(x), autocast(e)
        x, e, features = align(x, e)
        rows = self.num_destinations
        if reduce in ("max", "min"):
            out, _ = traced_spmm_minmax(x, e, self._edges, message, reduce == "min")
        else:
            out = traced_spmm(x, e, self._edges, message, reduce == "mean")
        return out.reshape(rows, *features)

    def spmm_transposed(
        self, message: str, x: Tensor | None = None, e: Tensor | None = None
    ) -> NoReturn:
        """Raises ``NotImplementedError``."""
        raise NotImplementedError("torch.compile: spmm_transposed of a traced structure")

    def spmm_add_self(self, of: SumAddSelf) -> Tensor:
        """Sums messages and weighted self rows: :func:`peergraph.aggregate.spmm_add_self`."""
        x, self_weight, e, bias, backward, deterministic = of
        _refuse_orders(backward, deterministic)
        assert not isinstance(x, TableRows)
        tensors = [tensor for tensor in (self_weight, e, bias) if tensor is not None]
        if all(tensor.dtype == x.dtype for tensor in tensors) and not _has_autocast(x):
            weight = None if e is None else e.unsqueeze(1)
            return traced_spmm_add_self(x, weight, self_weight, bias, self._edges)
        out = self.spmm(of.message, "sum", x, e)
        out = torch.addcmul(out, x[: self.num_destinations], self_weight)
        return out if bias is None else out + bias

    def spmm_linear(self, of: SumLinear) -> Tensor:
        """Aggregates and multiplies: see :func:`peergraph.aggregate.spmm_linear`."""
        reduce, x, weights, self_weight, bias, self_x, others, backward, deterministic = of
        _refuse_orders(backward, deterministic)
        assert not isinstance(x, TableRows)
        structures, weights = [self, *others], list(weights)
        optional = [t for t in (self_weight, bias, self_x) if t is not None]
        same = all(tensor.dtype == x.dtype for tensor in (*weights, *optional))
        if reduce in ("sum", "mean") and same and not _has_autocast(x):
            relations = [relation for each in structures for relation in each._edges.relations]
            keep = [torch.is_grad_enabled() and matrix.requires_grad for matrix in weights]
            mean, edges = reduce == "mean", replace(self._edges, relations=relations)
            own = self_x if self_weight is not None else None
            return traced_spmm_linear(x, own, self_weight, bias, weights, edges, mean, keep)[0]
        out = bias
        if self_weight is not None:
            rows = x[: self.num_destinations] if self_x is None else self_x
            out = F.linear(rows, self_weight, bias)
        for structure, matrix in zip(structures, weights, strict=True):
            product = F.linear(structure.spmm("copy_u", reduce, x), matrix)
            out = product if out is None else out + product
        assert out is not None
        return out

    def sddmm(
        self,
        op: str,
        lhs: Tensor,
        rhs: Tensor | None = None,
        lhs_target: str = "u",
        rhs_target: str = "v",
    ) -> Tensor:
        """Computes a value for each edge: see :func:`peergraph.aggregate.g_sddmm`.

        ``dot`` is not among the operations.
        """
        left, right = autocast(lhs), autocast(rhs)
        assert left is not None
        features = tuple(left.shape[1:])
        if right is not None and right.shape[1:] != features:
            features = tuple(torch.broadcast_shapes(features, right.shape[1:]))  # type: ignore[no-untyped-call]
            left, right = expand(left, features), expand(right, features)
        values = traced_sddmm(
            flat(left),
            None if right is None else flat(view_if_aliased(right, left)),
            self._edges,
            "copy_u" if op == "copy" else op,
            lhs_target + rhs_target,
            columns(features),
            1,
        )
        return values.reshape(self.num_edges, *features)

    def edge_softmax(self, scores: Tensor) -> Tensor:
        """Normalises scores of edges: see :func:`peergraph.aggregate.edge_softmax`."""
        if scores.dtype != torch.float64 and _has_autocast(scores):
            scores = scores.float()
        return traced_edge_softmax(flat(scores), None, self._edges).reshape(scores.shape)

    def attention(self, of: AttentionSum) -> Tensor:
        """Sums sources by attention in one pass: see :func:`peergraph.aggregate.attention`."""
        x, left, right, att, negative_slope, self_loops, deterministic = of
        _refuse_orders("auto", deterministic)
        depth, wide = x.shape[2], att is not None
        fitting = depth_for(x)
        assert fitting is not None
        missing = fitting - depth
        x, att = _append_zero_columns(x, missing), _append_zero_columns(att, missing)
        right = _append_zero_columns(right, missing) if wide else right
        score_dtype = sum_dtype(x.dtype)
        left, att = _to(left, score_dtype), _to(att, score_dtype)
        right = right if wide else _to(right, score_dtype)
        loops = -1 if self_loops is None else self_loops
        inputs = AttentionInputs(x, left, right, att, loops, float(negative_slope))
        return traced_attention(inputs, self._edges)[0][..., :depth]

    def fuses_messages(self) -> bool:
        """Returns False: messages of users are operations of torch."""
        return False

    def reduce_message(self, message: Message, operands: Mapping[str, Tensor | None]) -> NoReturn:
        """Raises ``NotImplementedError``."""
        raise NotImplementedError("torch.compile: reduce_message of a traced structure")


def _refuse_orders(backward: Backward, deterministic: bool | None) -> None:
    """Raises NotImplementedError where gradients are asked for in an order of their own."""
    if backward != "auto" or deterministic is not None:
        raise NotImplementedError(
            f"torch.compile: sums with backward={backward!r}, deterministic={deterministic}"
        )


def _has_autocast(x: Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


def _append_zero_columns(tensor: Any, columns: int) -> Any:
    """Appends columns of zeros to a tensor; None stays None."""
    return tensor if tensor is None or columns == 0 else F.pad(tensor, (0, columns))


def _to(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else tensor.to(dtype)
