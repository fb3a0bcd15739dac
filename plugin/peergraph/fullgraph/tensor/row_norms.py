"""Normalisation of each row by itself, on local rows; instance normalisation over rows, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.fullgraph.tensor.arguments import not_implemented
from peergraph.fullgraph.tensor.batch_norm import (
    NormalizeChannels,
    batch_norm,
    update_running,
    values_by_channel,
)
from peergraph.fullgraph.tensor.conversions import from_local, replicated_together
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import function_rule
from peergraph.memory import Group


def _on_rows(
    name: str, x: Tensor, first_dim: int, run: Callable[[Tensor, Group], Tensor]
) -> Tensor:
    """`run` on the local rows of `x`; it takes together elements of dimensions from `first_dim`."""
    if not isinstance(x, PartitionedTensor):
        not_implemented(name, "parameters are partitioned, the input is not")
    if x.partitioned_dim >= first_dim % x.dim():
        not_implemented(name, f"it runs along dimension {x.partitioned_dim}, which is partitioned")
    return from_local(run(x.to_local(), x.layout.group), x.layout, x.partitioned_dim)


@function_rule(F.layer_norm, torch.layer_norm)
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """As ``torch.nn.functional.layer_norm``, over dimensions that are not partitioned."""

    def run(local: Tensor, group: Group) -> Tensor:
        scale, shift = replicated_together(group, weight, bias)
        return F.layer_norm(local, normalized_shape, scale, shift, eps)

    return _on_rows("layer_norm", input, -len(normalized_shape), run)


@function_rule(F.rms_norm, torch.rms_norm)
def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """As ``torch.nn.functional.rms_norm``, over dimensions that are not partitioned."""

    def run(local: Tensor, group: Group) -> Tensor:
        (scale,) = replicated_together(group, weight)
        return F.rms_norm(local, normalized_shape, scale, eps)

    return _on_rows("rms_norm", input, -len(normalized_shape), run)


@function_rule(F.group_norm, torch.group_norm)
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """As ``torch.nn.functional.group_norm``, of rows along dimension 0."""

    def run(local: Tensor, group: Group) -> Tensor:
        scale, shift = replicated_together(group, weight, bias)
        # Not F.group_norm: its check of the number of values would see local ones.
        return torch.group_norm(local, num_groups, scale, shift, eps)

    return _on_rows("group_norm", input, 1, run)


@function_rule(F.instance_norm)
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """As ``torch.nn.functional.instance_norm``: rows may be instances, channels or positions.

    Over positions (dimension 2 and more) it is collective, as :func:`batch_norm` is.
    """
    if not isinstance(input, PartitionedTensor):
        not_implemented("instance_norm", "parameters are partitioned, the input is not")
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    positions = prod(input.shape[2:])
    if positions == 1:
        raise ValueError(
            "Expected more than 1 spatial element when training, got input size "
            f"{tuple(input.shape)}"
        )
    if input.partitioned_dim > 1:
        return _over_positions(input, running_mean, running_var, weight, bias, momentum, eps)
    given = (weight, bias, running_mean, running_var)
    if input.partitioned_dim == 1:
        if any(tensor is not None for tensor in given):
            not_implemented("instance_norm", "channels are partitioned, its parameters are not")
        return layer_norm(input, input.shape[2:], eps=eps)
    if running_mean is not None or running_var is not None:
        layout, by_channel = input.layout, input._local.flatten(2)
        means = by_channel.mean(2)
        variances = (by_channel - means.unsqueeze(2)).square().mean(2)
        mean, variance = (wrap(part, layout, 0).mean(0) for part in (means, variances))
        update_running(running_mean, running_var, mean, variance, positions, momentum)
    return group_norm(input, input.shape[1], weight, bias, eps)


def _over_positions(
    input: PartitionedTensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """Each channel of each instance becomes a channel of its own."""
    instances, channels = input.shape[:2]
    merged = input.reshape(1, instances * channels, *input.shape[2:])
    weights = (None if part is None else part.repeat(instances) for part in (weight, bias))
    out, mean, variance, _ = NormalizeChannels.apply(merged, *weights, eps)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        mean, variance = (part.view(instances, channels).mean(0) for part in (mean, variance))
    count = values_by_channel(merged)
    update_running(running_mean, running_var, mean, variance, count, momentum)
    result: Tensor = out.reshape(input.shape)
    return result


@function_rule(torch.instance_norm)
def _torch_instance_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    return instance_norm(
        *(input, running_mean, running_var, weight, bias), *(use_input_stats, momentum, eps)
    )
