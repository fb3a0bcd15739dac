"""Functions that compute each row from the same row: called on local rows and plain weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from peergraph.aggregate.layers.node_scores import node_scores
from peergraph.fullgraph.tensor.arguments import (
    local_rows_of_plain,
    not_implemented,
    require_same_rows,
)
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows
from peergraph.fullgraph.tensor.conversions import from_local, replicated
from peergraph.fullgraph.tensor.copies import gather
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, run_as_is
from peergraph.fullgraph.tensor.registry import chunk_rule, function_rule
from peergraph.fullgraph.tensor.selection import in_layout

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
        if arg.partitioned_dim != 0:
            not_implemented(name, "rows are not the first dimension")
        rows = in_layout(arg, first.row_layout)
        if rows is None:
            require_same_rows(name, first.row_layout, arg.row_layout)
        return (arg if rows is None else rows).to_local()
    if isinstance(arg, Tensor):
        return replicated(arg, first.row_layout.group)
    if isinstance(arg, (list, tuple)):
        return type(arg)(enter(name, part, first) for part in arg)
    return arg


@function_rule(F.bilinear, torch.bilinear)
def bilinear(input1: Any, input2: Any, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `torch.bilinear`; a plain input has equal rows, as ``summary.expand_as(x)`` has."""
    if any(isinstance(x, PartitionedTensor) for x in (weight, bias)):
        not_implemented("bilinear", "its weights are partitioned")
    first = first_partitioned([input1, input2])
    if first.dim() < 2:
        not_implemented("bilinear", "features are partitioned")
    inputs = [enter("bilinear", x, first) for x in (input1, input2)]
    for place, x in enumerate((input1, input2)):
        if not isinstance(x, PartitionedTensor):
            inputs[place] = local_rows_of_plain("bilinear", inputs[place], first.row_layout, 0)
    weights = [enter("bilinear", x, first) for x in (weight, bias)]
    return from_local(F.bilinear(*inputs, *weights), first.row_layout)


def _register_batched(function: Any, dims: int) -> None:
    """For a function of a batch with a sample for each row, channels, and `dims` dimensions."""

    def run(input: Any, *args: Any, **kwargs: Any) -> Any:
        name = function.__name__
        if not isinstance(input, PartitionedTensor) or input.partitioned_dim != 0:
            not_implemented(name, "rows are not the batch")
        if input.ndim != dims + 2:
            not_implemented(name, "rows are channels of one sample")
        if any(isinstance(arg, PartitionedTensor) for arg in (*args, *kwargs.values())):
            not_implemented(name, "its weights are partitioned")
        weights = [enter(name, arg, input) for arg in args]
        named = {key: enter(name, arg, input) for key, arg in kwargs.items()}
        result = function(input.to_local(), *weights, **named)
        if isinstance(result, Tensor):
            return from_local(result, input.row_layout)
        return tuple(from_local(part, input.row_layout) for part in result)

    function_rule(function)(run)


_BATCHED = ["conv", "conv_transpose", "avg_pool", "max_pool"]
_BATCHED += ["adaptive_avg_pool", "adaptive_max_pool"]
for _dims in (1, 2, 3):
    for _name in _BATCHED:
        _register_batched(getattr(F, f"{_name}{_dims}d"), _dims)
        if "max" in _name:
            _register_batched(getattr(F, f"{_name}{_dims}d_with_indices"), _dims)


@function_rule(node_scores)
def _node_scores(h: Any, *vectors: Tensor) -> tuple[PartitionedTensor, ...]:
    """Scores of nodes, which layers pass on to attention: gradients take the short way back."""
    if not isinstance(h, PartitionedTensor) or h.partitioned_dim != 0:
        not_implemented("node_scores", "rows are not the first dimension of the features")
    group = h.row_layout.group
    scores = node_scores(h.to_local(), *(replicated(vector, group) for vector in vectors))
    results = []
    for part in scores:
        rows = from_local(part, h.row_layout)
        rows._with_history = part if part.requires_grad else None
        results.append(rows)
    return tuple(results)


@chunk_rule(node_scores)
def _node_scores_of_chunk(h: Any, *vectors: Any) -> tuple[ChunkRows, ...] | None:
    if type(h) is not ChunkRows or h.partitioned_dim:
        return None
    if any(type(vector) is ChunkRows for vector in vectors):
        return None
    return tuple(ChunkRows(part, h.row_layout) for part in node_scores(h.rows, *vectors))


@function_rule(torch.matmul, Tensor.matmul, Tensor.__matmul__, anywhere=True)
def matmul(input: Any, other: Any) -> Tensor:
    """As `torch.matmul`; batches of plain matrices are not spread over all rows."""
    if input.dim() == 1 and other.dim() == 2:
        return torch.matmul(other.t(), input)  # autocast does not know `mv` on the CPU
    is_resident = isinstance(input, PartitionedTensor) and not input.is_offloaded
    if is_resident and not isinstance(other, PartitionedTensor):
        rows, dims = input.partitioned_dim, input.dim()
        if other.dim() > 2 and rows < dims - 2 and other.dim() < dims - rows:
            local = input.to_local() @ replicated(other, input.row_layout.group)
            return from_local(local, input.row_layout, rows)
    input, other = _with_gathered_rows(input, other, transposed=False)
    product: Tensor = run_as_is(torch.matmul, input, other)
    return product


@function_rule(torch.mm, Tensor.mm, anywhere=True)
def mm(input: Any, mat2: Any) -> Tensor:
    """As `torch.mm`."""
    return matmul(input, mat2)


@function_rule(torch.cdist, anywhere=True)
def cdist(
    x1: Any,
    x2: Any,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> Tensor:
    """As `torch.cdist`: to plain rows, or to selected rows, which are gathered."""
    x1, x2 = _with_gathered_rows(x1, x2, transposed=True)
    parts = [x for x in (x1, x2) if isinstance(x, PartitionedTensor)]
    if len(parts) != 1 or parts[0].partitioned_dim != parts[0].ndim - 2 or x1.ndim != x2.ndim:
        not_implemented("cdist", "distances are not those of rows to a few plain ones")
    [rows] = parts
    if rows.is_offloaded:
        return run_as_is(torch.cdist, x1, x2, p, compute_mode)  # type: ignore[no-any-return]
    group, dim = rows.row_layout.group, rows.partitioned_dim + (rows is x2)
    first, second = (
        x.to_local() if isinstance(x, PartitionedTensor) else replicated(x, group) for x in (x1, x2)
    )
    return from_local(torch.cdist(first, second, p, compute_mode), rows.row_layout, dim)


def _with_gathered_rows(input: Any, other: Any, transposed: bool) -> tuple[Any, Any]:
    """Returns the factors of a product of all pairs of rows, of which one is gathered.

    That is the one with fewer rows, if rows of it were selected: ``x[ids] @ x.t()``. Each rank then
    has the products with its rows of the other.

    Args:
        transposed: whether both have rows in the last dimension but one.
    """
    if not (isinstance(input, PartitionedTensor) and isinstance(other, PartitionedTensor)):
        return input, other
    dims = input.ndim, other.ndim
    other_rows = other.ndim - 2 if transposed else other.ndim - 1
    if dims != (2, 2) or input.partitioned_dim != 0 or other.partitioned_dim != other_rows:
        return input, other
    for fewer, more in ((other, input), (input, other)):
        if _is_selection(fewer) and fewer.row_layout.size <= more.row_layout.size:
            full = gather(fewer, "a product of all pairs of rows").to(fewer.device)
            return (input, full) if fewer is other else (full, other)
    return input, other


def _is_selection(x: PartitionedTensor) -> bool:
    layout = x.row_layout.base
    return layout.parent is not None or layout.by_ids


@function_rule(torch.isin)
def isin(elements: Any, test_elements: Any, **kwargs: Any) -> Tensor:
    """Whether elements are among plain ones."""
    if isinstance(test_elements, PartitionedTensor):
        not_implemented("isin", "the elements to look for are partitioned")
    local = torch.isin(elements._local, test_elements, **kwargs)
    return from_local(local, elements.row_layout, elements.partitioned_dim)


@function_rule(F.multi_head_attention_forward)
def multi_head_attention(query: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention within each row of a batch; attention between rows is refused."""
    if isinstance(query, PartitionedTensor) and query.partitioned_dim == 0:
        not_implemented(
            "multi-head attention between nodes",
            "it compares all pairs of rows, of which each rank has some (linear attention, as "
            "attn_type='performer' of PyG's GPSConv, sums over rows and is exact)",
        )
    # Torch's formula in its own operations, of which each has a rule.
    with sdpa_kernel(SDPBackend.MATH), _DisableTorchFunction():
        return F.multi_head_attention_forward(query, *args, **kwargs)


@function_rule(F.scaled_dot_product_attention)
def scaled_dot_product_attention(query: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention within each row; attention between rows has no rule."""
    with sdpa_kernel(SDPBackend.MATH), _DisableTorchFunction():
        return F.scaled_dot_product_attention(query, *args, **kwargs)
