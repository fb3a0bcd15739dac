"""Functions that compute each row from the same row: called on local rows and plain weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.layers.node_scores import node_scores
from peergraph.fullgraph.tensor.arguments import (
    local_rows_of_plain,
    not_implemented,
    require_same_rows,
)
from peergraph.fullgraph.tensor.conversions import from_local, replicated
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.registry import function_rule

_DisableTorchFunction = torch._C.DisableTorchFunctionSubclass


def first_partitioned(args: list[Any]) -> PartitionedTensor:
    """Returns the first partitioned tensor of arguments, of which some are lists."""
    for arg in args:
        if isinstance(arg, PartitionedTensor):
            return arg
        if isinstance(arg, (list, tuple)):
            for part in arg:
                if isinstance(part, PartitionedTensor):
                    return part
    raise TypeError("no argument is partitioned")


def enter(name: str, arg: Any, first: PartitionedTensor) -> Any:
    """Returns an argument as it enters a computation on the local rows of `first`."""
    if isinstance(arg, PartitionedTensor):
        require_same_rows(name, first.layout, arg.layout)
        if arg.partitioned_dim != 0:
            not_implemented(name, "rows are not the first dimension")
        return arg.to_local()
    if isinstance(arg, Tensor):
        return replicated(arg, first.layout.group)
    if isinstance(arg, (list, tuple)):
        return type(arg)(enter(name, part, first) for part in arg)
    return arg


@function_rule(F.bilinear, torch.bilinear)
def bilinear(input1: Any, input2: Any, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `torch.bilinear`; a plain input has equal rows, as ``summary.expand_as(x)`` has."""
    first = first_partitioned([input1, input2])
    inputs = [enter("bilinear", x, first) for x in (input1, input2)]
    for place, x in enumerate((input1, input2)):
        if not isinstance(x, PartitionedTensor):
            inputs[place] = local_rows_of_plain("bilinear", inputs[place], first.layout, 0)
    weights = [enter("bilinear", x, first) for x in (weight, bias)]
    return from_local(F.bilinear(*inputs, *weights), first.layout)


@function_rule(node_scores)
def _node_scores(h: Any, *vectors: Tensor) -> tuple[PartitionedTensor, ...]:
    """Scores of nodes, which layers pass on to attention: gradients take the short way back."""
    if not isinstance(h, PartitionedTensor) or h.partitioned_dim != 0:
        not_implemented("node_scores", "rows are not the first dimension of the features")
    group = h.layout.group
    found = node_scores(h.to_local(), *(replicated(vector, group) for vector in vectors))
    results = []
    for part in found:
        rows = from_local(part, h.layout)
        rows._with_history = part if part.requires_grad else None
        results.append(rows)
    return tuple(results)


@function_rule(torch.matmul, Tensor.matmul, Tensor.__matmul__)
def matmul(input: Any, other: Any) -> Tensor:
    """As `torch.matmul`; batches of plain matrices are not spread over all rows."""
    if input.dim() == 1 and other.dim() == 2:
        return torch.mv(other.t(), input)
    if isinstance(input, PartitionedTensor) and not isinstance(other, PartitionedTensor):
        rows, dims = input.partitioned_dim, input.dim()
        if other.dim() > 2 and rows < dims - 2 and other.dim() < dims - rows:
            local = input.to_local() @ replicated(other, input.layout.group)
            return from_local(local, input.layout, rows)
    with _DisableTorchFunction():
        return torch.matmul(input, other)


@function_rule(torch.isin)
def isin(elements: Any, test_elements: Any, **kwargs: Any) -> Tensor:
    """Whether elements are among plain ones."""
    if isinstance(test_elements, PartitionedTensor):
        not_implemented("isin", "the elements to look for are partitioned")
    local = torch.isin(elements._local, test_elements, **kwargs)
    return from_local(local, elements.layout, elements.partitioned_dim)


@function_rule(F.multi_head_attention_forward)
def multi_head_attention(query: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention within each row of a batch; attention between rows is refused."""
    if isinstance(query, PartitionedTensor) and query.partitioned_dim == 0:
        not_implemented(
            "multi-head attention between nodes",
            "it compares all pairs of rows, of which each rank has some (linear attention, as "
            "attn_type='performer' of PyG's GPSConv, sums over rows and is exact)",
        )
    with _DisableTorchFunction():
        return F.multi_head_attention_forward(query, *args, **kwargs)
