"""A second implementation of `Structure`: a list of edges in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate import AttentionSum, Message, Structure, Sum, SumAddSelf, SumLinear
from peergraph.memory import TableRows
from peergraph.reference import aggregate as reference

_Result = TypeVar("_Result")


def dense(x: Tensor | TableRows) -> Tensor:
    return x.gather() if isinstance(x, TableRows) else x


class EdgeListStructure(Structure):
    """Edges [2, edges] from sources to destinations; writes every message."""

    num_sources = num_destinations = num_edges = 0
    device = torch.device("cpu")
    transient = False

    def __init__(self, edge_index: Tensor, num_destinations: int, num_sources: int) -> None:
        self.edge_index = edge_index
        self.num_destinations, self.num_sources = num_destinations, num_sources
        self.num_edges, self.device = edge_index.shape[1], edge_index.device
        self._cache: dict[Hashable, Any] = {}

    def in_degrees(self) -> Tensor:
        return torch.bincount(self.edge_index[1], minlength=self.num_destinations)

    def out_degrees(self) -> Tensor:
        return torch.bincount(self.edge_index[0], minlength=self.num_sources)

    def count_self_loops(self, dtype: torch.dtype) -> Tensor:
        source, destination = self.edge_index
        loops = destination[source == destination]
        return torch.bincount(loops, minlength=self.num_destinations).to(dtype)

    def cached(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        if key not in self._cache:
            self._cache[key] = make()
        result: _Result = self._cache[key]
        return result

    def reduce(self, of: Sum) -> Tensor:
        message, reduce, x, e, *_ = of
        rows = None if x is None else dense(x)
        return reference.g_spmm(self.edge_index, self.num_destinations, message, reduce, rows, e)

    def spmm_transposed(
        self, message: str, x: Tensor | None = None, e: Tensor | None = None
    ) -> Tensor:
        reverse = self.edge_index.flip(0)
        return reference.g_spmm(reverse, self.num_sources, message, "sum", x, e)

    def spmm_add_self(self, of: SumAddSelf) -> Tensor:
        out = self.spmm("copy_u" if of.e is None else "mul", "sum", of.x, of.e)
        out = out + dense(of.x)[: self.num_destinations] * of.self_weight
        return out if of.bias is None else out + of.bias

    def spmm_linear(self, of: SumLinear) -> Tensor:
        out = F.linear(self.spmm("copy_u", of.reduce, of.x), of.weights[0], of.bias)
        for structure, weight in zip(of.others, of.weights[1:], strict=True):
            out = out + F.linear(structure.spmm("copy_u", of.reduce, of.x), weight)
        if of.self_weight is None:
            return out
        rows = dense(of.x)[: self.num_destinations] if of.self_x is None else of.self_x
        return out + F.linear(rows, of.self_weight)

    def sddmm(
        self,
        op: str,
        lhs: Tensor,
        rhs: Tensor | None = None,
        lhs_target: str = "u",
        rhs_target: str = "v",
    ) -> Tensor:
        return reference.g_sddmm(self.edge_index, op, lhs, rhs, lhs_target, rhs_target)

    def edge_softmax(self, scores: Tensor) -> Tensor:
        return reference.edge_softmax(self.edge_index, self.num_destinations, scores)

    def supports_attention(self, x: Tensor) -> bool:
        return False

    def attention(self, of: AttentionSum) -> Tensor:
        raise NotImplementedError("layers ask supports_attention first")

    def fuses_messages(self) -> bool:
        return False

    def reduce_message(self, message: Message, operands: Mapping[str, Tensor | None]) -> Tensor:
        raise NotImplementedError("layers ask fuses_messages first")
