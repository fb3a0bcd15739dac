"""Normalisation of each row by its own statistics: gradients of weights add up over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload

from peergraph.fullgraph.exchange.transport import reductions_of
from peergraph.fullgraph.tensor.arguments import not_implemented, require_same_rows
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import RULES, Rule, chunk_rule, function_rule, rule

aten = torch.ops.aten


def _wrap_like(x: PartitionedTensor, results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(map(x.with_rows, results))


def _finish(x: PartitionedTensor, results: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The gradient of the input, partitioned, and those of weights, plain."""
    input_grad, *others = results
    return [
        None if input_grad is None else wrap(input_grad, x.row_layout, x.partitioned_dim),
        *(None if g is None else reductions_of(x.row_layout.group).all_reduce(g) for g in others),
    ]


def _check_columns(name: str, x: Any, shape: Sequence[int]) -> None:
    if not hasattr(x, "partitioned_dim"):
        not_implemented(name, "its weights are partitioned")
    if x.partitioned_dim >= x._local.dim() - len(shape):
        not_implemented(name, "it runs along the partitioned dimension")


@rule(aten.native_layer_norm.default)
def layer_norm(
    x: Any, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    """Layer norm over trailing dimensions: output, mean, reciprocal standard deviation."""
    _check_columns("layer_norm", x, shape)
    return _wrap_like(x, aten.native_layer_norm.default(x._local, shape, weight, bias, eps))


@chunk_rule(F.layer_norm)
def _layer_norm_of_chunk(
    input: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor | None:
    return layer_norm(input, shape, weight, bias, eps)[0] if type(input) is ChunkRows else None


def _backward(name: str, overload: OpOverload) -> Rule:
    """Returns the rule of the gradient of a norm over trailing dimensions."""

    def run(grad: Any, x: Any, shape: Sequence[int], *arguments: Any) -> list[Tensor | None]:
        require_same_rows(name, grad.row_layout, x.row_layout)
        local = [a._local if type(a) is PartitionedTensor else a for a in arguments]
        results = overload(grad._local, x._local, shape, *local)
        return _finish(x, _masked(results, arguments[-1]))

    return run


RULES[aten.native_layer_norm_backward.default] = _backward(
    "layer_norm", aten.native_layer_norm_backward.default
)


def _masked(results: Sequence[Tensor], mask: Sequence[bool]) -> list[Tensor | None]:
    return [result if is_output else None for result, is_output in zip(results, mask, strict=True)]


def rms_norm(
    x: Any, shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, ...]:
    """RMS norm over trailing dimensions: output, reciprocal root mean square."""
    _check_columns("rms_norm", x, shape)
    return _wrap_like(x, aten._fused_rms_norm.default(x._local, shape, weight, eps))


if hasattr(aten, "_fused_rms_norm"):  # from torch 2.9 on; composed of other operations before
    RULES[aten._fused_rms_norm.default] = rms_norm
    RULES[aten._fused_rms_norm_backward.default] = _backward(
        "rms_norm", aten._fused_rms_norm_backward.default
    )


@rule(aten.native_group_norm.default)
def group_norm(
    x: Any,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, ...]:
    """Group norm of rows: output, mean, reciprocal standard deviation."""
    _check_columns("group_norm", x, x.shape[1:])
    if not x.row_layout.local_count:
        empty = x._local.new_empty(0, groups)
        return _wrap_like(x, (torch.empty_like(x._local), empty, empty))
    results = aten.native_group_norm.default(
        x._local, weight, bias, x.row_layout.local_count, channels, pixels, groups, eps
    )
    return _wrap_like(x, results)


@rule(aten.native_group_norm_backward.default)
def group_norm_backward(
    grad: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    weight: Tensor | None,
    n: int,
    channels: int,
    pixels: int,
    groups: int,
    mask: list[bool],
) -> list[Tensor | None]:
    """The gradient of :func:`group_norm`."""
    require_same_rows("group_norm", grad.row_layout, x.row_layout)
    local = x._local
    if not x.row_layout.local_count:
        zeros = [local.new_zeros(local.shape), local.new_zeros(channels), local.new_zeros(channels)]
        return _finish(x, _masked(zeros, mask))
    results = aten.native_group_norm_backward.default(
        grad._local.contiguous(),
        local,
        mean._local,
        rstd._local,
        weight,
        x.row_layout.local_count,
        channels,
        pixels,
        groups,
        mask,
    )
    return _finish(x, _masked(results, mask))


@function_rule(torch.renorm, Tensor.renorm)
def renorm(input: Any, p: float, dim: int, maxnorm: float) -> Tensor:
    """As `torch.renorm`: limits the norm of each part of `input` along `dim`."""
    others = [d for d in range(input.dim()) if d != dim % input.dim()]
    norm = torch.linalg.vector_norm(input, p, others, keepdim=True)
    factor = torch.where(norm > maxnorm, maxnorm / (norm + 1e-7), torch.ones_like(norm))
    result: Tensor = (input * factor).contiguous()
    return result


@function_rule(Tensor.renorm_)
def renorm_(input: Any, p: float, dim: int, maxnorm: float) -> Tensor:
    """As `Tensor.renorm_`."""
    result: Tensor = input.copy_(renorm(input.clone(), p, dim, maxnorm))
    return result
