"""Copies of offloaded tensors: of the same rows, or of all rows on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.offload.functions.expanded_rows import expanded_rows
from peergraph.fullgraph.offload.functions.recording import record
from peergraph.fullgraph.offload.tensor.offloaded_tensor import (
    ChangeMark,
    OffloadedTensor,
    Whole,
    make_shell,
)
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.registry import offloaded_rule


@offloaded_rule(Tensor.__deepcopy__)
def deepcopy(x: OffloadedTensor, memo: dict[int, Any]) -> Any:
    """A tensor of the same rows, which are never changed: a change gives a tensor other rows."""
    if not x.is_leaf:
        raise RuntimeError("only leaf tensors can be copied deeply: x.detach() first")
    if id(x) not in memo:
        content = copy.copy(x._content)
        content.change_mark = ChangeMark()
        memo[id(x)] = make_shell(content).requires_grad_(x.requires_grad)
    return memo[id(x)]


@offloaded_rule(Tensor.detach, torch.detach, Tensor.data.__get__)  # type: ignore[attr-defined]
def detach(x: OffloadedTensor) -> OffloadedTensor:
    """The same rows without history. What changes one of both in place changes the other."""
    result: OffloadedTensor = record(Tensor.detach, (x,), {})
    result._cell.whole = x._cell.whole = x._cell.whole or Whole()
    return result


@offloaded_rule(Tensor.expand_as)
def expand_as(x: Tensor, other: Tensor) -> Tensor:
    """As `Tensor.expand_as`: a plain row, expanded to offloaded rows, has their chunks."""
    if isinstance(other, OffloadedTensor) and not isinstance(x, PartitionedTensor):
        dim = other.partitioned_dim
        behind = x.dim() - other.dim() + dim
        if other.shape[dim] > 1 and (behind < 0 or x.shape[behind] == 1):
            row = x.expand(*other.shape[:dim], 1, *other.shape[dim + 1 :])
            result: Tensor = record(expanded_rows, (row, other.detach(), dim), {})
            return result
    plain: Tensor = record(Tensor.expand_as, (x, other), {})
    return plain
