"""Batch normalisation with the statistics of all ranks' rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.fullgraph.exchange.transport import reductions_of
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.arguments import not_implemented
from peergraph.fullgraph.tensor.conversions import take_rows
from peergraph.fullgraph.tensor.over_rows import moments
from peergraph.fullgraph.tensor.parameters import check_parameters
from peergraph.fullgraph.tensor.partitioned_tensor import (
    PartitionedTensor,
    run_as_is,
    wrap,
)
from peergraph.fullgraph.tensor.registry import METHODS, function_rule, rule

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)
_shares: WeakKeyDictionary[RowLayout, Tensor] = WeakKeyDictionary()


def _is_of_all_rows(x: PartitionedTensor, *parameters: Tensor | None) -> bool:
    """Whether torch's own normalisation of the local rows is that of all rows."""
    local = x._local
    return (
        x.row_layout.group.world_size == 1
        and local.dtype not in _HALF
        and local.numel() > 0
        and all(
            p is None or (p.dtype == local.dtype and not isinstance(p, PartitionedTensor))
            for p in parameters
        )
    )


def channel_statistics(x: PartitionedTensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel over all ranks. Collective: one reduction.

    Those of each rank are combined (Chan et al. 1979). float64 for float64, else float32.
    """
    _check_channels("batch_norm", x)
    group, local = x.row_layout.group, x._local
    if local.dtype in _HALF:
        local = local.float()
    if group.world_size == 1 and local.numel():
        variance, mean = torch.var_mean(local, _other_dims(local), correction=0)
        return mean, variance
    if not reductions_of(group).one_part_a_rank:
        rows = wrap(local, x.row_layout, x.partitioned_dim)
        variance, mean = moments(rows, list(_other_dims(local)), 0, keepdim=False)
        return mean, variance
    mean = variance = local.new_zeros(local.shape[1])
    if local.numel():
        variance, mean = torch.var_mean(local, _other_dims(local), correction=0)
    return statistics_of_ranks(x.row_layout, mean, variance)


def statistics_of_ranks(layout: RowLayout, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Returns mean and biased variance of all ranks' rows. Collective: one reduction.

    Each rank's are combined in rank order, so all ranks get the same bits.

    Args:
        layout: of the rows.
        mean, variance: of this rank's rows; zeros if it has none.
    """
    group = layout.group
    parts = mean.new_zeros(group.world_size, 2, *mean.shape)
    parts[group.rank, 0], parts[group.rank, 1] = mean, variance
    parts = reductions_of(group).all_reduce(parts)
    shares = _shares_of(layout, parts)
    means, variances = parts.unbind(1)
    mean = (shares * means).sum(0)
    return mean, (shares * (variances + (means - mean).square())).sum(0)


def _shares_of(layout: RowLayout, like: Tensor) -> Tensor:
    """The share of the rows that each rank has, [ranks, 1], copied to the device once."""
    shares = _shares.get(layout)
    if shares is None or shares.dtype != like.dtype:
        shares = like.new_tensor(layout.counts).div_(max(layout.size, 1)).unsqueeze(1)
        _shares[layout] = shares
    return shares


def normalized(
    local: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
) -> Tensor:
    """The local rows, normalised with given statistics."""
    if weight is not None and weight.dtype != mean.dtype:
        weight, bias = weight.to(mean.dtype), None if bias is None else bias.to(mean.dtype)
    mean, variance = mean.contiguous(), variance.contiguous()
    enabled = torch.backends.cudnn.enabled
    return torch.batch_norm(local, weight, bias, mean, variance, False, 0.0, eps, enabled)


def channel_gradients(
    grad: PartitionedTensor,
    x: PartitionedTensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    needs_x: bool,
    constant: bool = False,
) -> tuple[PartitionedTensor | None, Tensor, Tensor]:
    """The gradients of input, weight and bias. Collective: one reduction.

    Args:
        constant: the statistics do not depend on the input.
    """
    dims = _other_dims(x._local)
    centered = x._local - by_channel(mean, x)
    grad_local = grad._local
    sums = torch.stack(
        [
            grad_local.sum(dims, dtype=mean.dtype),
            (grad_local * centered).sum(dims, dtype=mean.dtype),
        ]
    )
    grad_bias, products = reductions_of(x.row_layout.group).all_reduce(sums).unbind()
    grad_weight = products * invstd
    if not needs_x:
        return None, grad_weight, grad_bias
    scale = invstd if weight is None else invstd * weight
    if constant:
        grad_x = grad_local
    else:
        count = values_by_channel(x)
        grad_x = centered.mul_(by_channel(-grad_weight * invstd / count, x)).add_(grad_local)
        grad_x = grad_x.sub_(by_channel(grad_bias / count, x))
    grad_x = grad_x * by_channel(scale, x)
    return wrap(grad_x.to(x.dtype), x.row_layout, x.partitioned_dim), grad_weight, grad_bias


def normalized_by(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Returns rows, normalised with statistics by channel. Differentiable in all tensors."""
    scale = (variance + eps).rsqrt()
    if weight is not None:
        scale = scale * weight.to(scale.dtype)
    out = (x.to(mean.dtype) - by_channel(mean, x)) * by_channel(scale, x)
    if bias is not None:
        out = out + by_channel(bias.to(out.dtype), x)
    return out.to(x.dtype)


@function_rule(F.batch_norm, anywhere=True)
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch normalisation; the running statistics are equal on all ranks.

    In training it is collective, twice with its gradient; of offloaded rows, it makes a pass over
    them. ValueError if all ranks together have one value per channel.
    """
    _check_channels("batch_norm", input)
    assert isinstance(input, PartitionedTensor)
    check_parameters((weight, bias), input.row_layout.group)
    count = values_by_channel(input)
    if training and count == 1:
        raise ValueError(
            "Expected more than 1 value per channel when training, got input size "
            f"{tuple(input.shape)}"
        )
    if not training and (running_mean is None or running_var is None):
        raise ValueError("running_mean and running_var must be given in evaluation")
    settings = weight, bias, running_mean, running_var, training, momentum, eps
    if not input.is_offloaded:
        with torch._C.DisableTorchFunctionSubclass():
            return torch.native_batch_norm(input, *settings)[0]
    mean, variance = running_mean, running_var
    if training:
        mean, variance = METHODS["offloaded statistics"](input)
        update_running(running_mean, running_var, mean.detach(), variance.detach(), count, momentum)
    out: Tensor = run_as_is(normalized_by, input, mean, variance, weight, bias, eps)
    return out


def update_running(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    count: int,
    momentum: float,
) -> None:
    """Moves running statistics, where there are any, towards those of a batch of `count` values."""
    with torch.no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            unbiased = variance * (count / max(count - 1, 1))
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)


@function_rule(torch.batch_norm, anywhere=True)
def _torch_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    return batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


@rule(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def _native_batch_norm(
    input: PartitionedTensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_channels("native_batch_norm", input)
    if training and _is_of_all_rows(input, weight, bias, running_mean, running_var):
        settings = weight, bias, running_mean, running_var, training, momentum, eps
        out, *statistics = aten.native_batch_norm.default(input._local, *settings)
        return input.with_rows(out), *statistics
    if training:
        mean, variance = channel_statistics(input)
        update_running(
            running_mean, running_var, mean, variance, values_by_channel(input), momentum
        )
        statistics = [mean, (variance + eps).rsqrt()]
    else:
        assert running_mean is not None and running_var is not None
        mean, variance = running_mean, running_var
        statistics = [mean.new_empty(0), mean.new_empty(0)]
    out = normalized(input._local, weight, bias, mean, variance, eps)
    return input.with_rows(out), *statistics


@rule(aten._native_batch_norm_legit.no_stats)
def _native_batch_norm_without_statistics(
    input: PartitionedTensor, weight: Tensor | None, bias: Tensor | None, *settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _native_batch_norm(input, weight, bias, None, None, *settings)


@rule(aten.native_batch_norm_backward.default)
def _native_batch_norm_backward(
    grad_out: PartitionedTensor,
    input: PartitionedTensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    grad = take_rows(grad_out, input.row_layout, input.partitioned_dim)
    if train and _is_of_all_rows(input, weight, running_mean, running_var):
        statistics = running_mean, running_var, save_mean, save_invstd, train, eps, output_mask
        grad_x, *others = aten.native_batch_norm_backward.default(
            grad._local, input._local, weight, *statistics
        )
        gradients = input.with_rows(grad_x) if output_mask[0] else None, *others
    else:
        mean, invstd = save_mean, save_invstd
        if not train:
            assert running_var is not None
            mean, invstd = running_mean, (running_var + eps).rsqrt()
        assert mean is not None and invstd is not None
        gradients = channel_gradients(grad, input, weight, mean, invstd, output_mask[0], not train)
    return tuple(part if need else None for part, need in zip(gradients, output_mask, strict=True))


@rule(aten.cudnn_batch_norm.default)
def _cudnn_batch_norm(input: PartitionedTensor, *settings: Any) -> tuple[Tensor, ...]:
    reserved = input._local.new_empty(0, dtype=torch.uint8)
    return *_native_batch_norm(input, *settings), reserved


@rule(aten.cudnn_batch_norm_backward.default)
def _cudnn_batch_norm_backward(
    input: PartitionedTensor,
    grad_output: PartitionedTensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor,
    save_invstd: Tensor,
    *_: Any,
) -> tuple[Tensor | None, ...]:
    return channel_gradients(grad_output, input, weight, save_mean, save_invstd, needs_x=True)


@rule(aten.batch_norm_stats.default)
def _sync_batch_norm(*_: Any) -> NoReturn:
    raise NotImplementedError(
        "SyncBatchNorm is not implemented for partitioned tensors and not needed: nn.BatchNorm1d "
        "has the statistics of all ranks' rows; leave out convert_sync_batchnorm"
    )


def _other_dims(local: Tensor) -> list[int]:
    return [dim for dim in range(local.dim()) if dim != 1]


def by_channel(values: Tensor, x: Tensor) -> Tensor:
    """Returns values [channels] as they broadcast with rows."""
    return values.view(-1, *[1] * (x.dim() - 2))


def values_by_channel(x: Tensor) -> int:
    return x.numel() // max(x.shape[1], 1)


def _check_channels(name: str, x: Tensor) -> None:
    if not isinstance(x, PartitionedTensor):
        not_implemented(name, "parameters or statistics are partitioned, the input is not")
    if x.dim() < 2 or x.partitioned_dim == 1:
        not_implemented(
            name, f"channels are dimension 1, rows are partitioned along {x.partitioned_dim}"
        )
