"""Instance normalisation: of each row by itself, or over rows of all ranks."""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.fullgraph.tensor.arguments import not_implemented
from peergraph.fullgraph.tensor.batch_norm import (
    batch_norm,
    update_running,
)
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import function_rule


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
    options = (weight, bias, running_mean, running_var)
    if input.partitioned_dim == 1:
        if any(tensor is not None for tensor in options):
            not_implemented("instance_norm", "channels are partitioned, its parameters are not")
        return F.layer_norm(input, input.shape[2:], eps=eps)
    if running_mean is not None or running_var is not None:
        layout, by_channel = input.row_layout, input._local.flatten(2)
        means = by_channel.mean(2)
        variances = (by_channel - means.unsqueeze(2)).square().mean(2)
        mean, variance = (wrap(part, layout, 0).mean(0) for part in (means, variances))
        update_running(running_mean, running_var, mean, variance, positions, momentum)
    return F.group_norm(input, input.shape[1], weight, bias, eps)


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
    tensors = running_mean, running_var, weight, bias
    mean, variance, scale, offset = (None if x is None else x.repeat(instances) for x in tensors)
    out = batch_norm(merged, mean, variance, scale, offset, True, momentum, eps)
    with torch.no_grad():
        for total, by_instance in ((running_mean, mean), (running_var, variance)):
            if total is not None and by_instance is not None:
                total.copy_(by_instance.view(instances, channels).mean(0))
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
