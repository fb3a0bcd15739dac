"""Batch normalisation of offloaded rows: statistics in one pass, then a function of each row."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.fullgraph.exchange.transport import Transport
from peergraph.fullgraph.offload.functions.recording import record, refuse
from peergraph.fullgraph.offload.gradients.segment import make_boundary, row_operand
from peergraph.fullgraph.offload.passes.chunk_pass import PassChunk
from peergraph.fullgraph.offload.programs.program import Place
from peergraph.fullgraph.offload.programs.record import RowOperand
from peergraph.fullgraph.offload.programs.row_pass import RowPass
from peergraph.fullgraph.offload.tensor.offloaded_function import OffloadedFunction
from peergraph.fullgraph.offload.tensor.offloaded_tensor import RULES, OffloadedTensor
from peergraph.fullgraph.tensor.batch_norm import update_running
from peergraph.fullgraph.tensor.parameters import check_parameters

_HALF = (torch.float16, torch.bfloat16)


def channel_statistics(operand: RowOperand) -> tuple[Tensor, Tensor]:
    """Returns mean and biased variance of each channel over all rows. Collective; one pass.

    The chunks' means and sums of squared deviations are combined in their order, then those of the
    ranks in rank order (Chan et al. 1979). float64 for float64, else float32.

    Args:
        operand: [rows, channels, ...].
    """
    content = operand.content
    group, channels = content.space.rank.real, content.features[0]
    device = content.space.rank.device
    dtype = torch.float32 if content.dtype in _HALF else content.dtype
    row_pass = RowPass(content.space, [operand])
    [slot] = row_pass.outputs
    count = 0
    mean = torch.zeros(channels, dtype=dtype, device=device)
    squares = torch.zeros_like(mean)

    def visit(chunk: PassChunk, place: Place, values: list[Any]) -> None:
        nonlocal count, mean, squares
        rows = values[slot].to_local().to(dtype).movedim(1, -1).reshape(-1, channels)
        if len(rows):
            variance, chunk_mean = torch.var_mean(rows, 0, correction=0)
            mean, squares = _combined(count, mean, squares, len(rows), chunk_mean,
                                      variance * len(rows))  # fmt: skip
            count += len(rows)

    row_pass.run(visit)
    parts = torch.zeros(group.world_size, 3, channels, dtype=dtype, device=device)
    parts[group.rank] = torch.stack([torch.full_like(mean, count), mean, squares])
    counts, means, sums = Transport.of(group).all_reduce(parts).unbind(1)
    shares = counts / counts.sum(0)
    total_mean = (shares * means).sum(0)
    deviations = sums + counts * (means - total_mean).square()
    return total_mean, deviations.sum(0) / counts.sum(0)


def _combined(
    count: int, mean: Tensor, squares: Tensor, added: int, other: Tensor, other_squares: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and squared deviations of two sets of rows."""
    share = added / (count + added)
    difference = other - mean
    return mean + difference * share, squares + other_squares + difference.square() * share * count


class ChannelStatistics(OffloadedFunction):
    """Mean and biased variance of each channel; the gradient is a function of each row."""

    @staticmethod
    def forward(ctx: Any, x: OffloadedTensor, operand: RowOperand) -> tuple[Tensor, Tensor]:
        mean, variance = channel_statistics(operand)
        ctx.save_for_backward(x, mean)
        return mean, variance

    @staticmethod
    def backward(
        ctx: Any, mean_grad: Tensor | None, variance_grad: Tensor | None
    ) -> tuple[Tensor | None, None]:
        x, mean = ctx.saved_tensors
        zeros = torch.zeros_like(mean)
        grads = [zeros if grad is None else grad for grad in (mean_grad, variance_grad)]
        count = x.numel() // x.shape[1]
        with torch.no_grad():
            return record(_statistics_gradient, (x.detach(), mean, *grads, count), {}), None


def _statistics_gradient(
    x: Tensor, mean: Tensor, mean_grad: Tensor, variance_grad: Tensor, count: int
) -> Tensor:
    shape = _by_channel(x)
    centered = x.to(mean.dtype) - mean.view(shape)
    grad = centered * (variance_grad * (2 / count)).view(shape) + (mean_grad / count).view(shape)
    return grad.to(x.dtype)


def _by_channel(x: Tensor) -> list[int]:
    return [1, -1, *[1] * (x.dim() - 2)]


def _normalize(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Normalises each row with given statistics."""
    shape = _by_channel(x)
    scale = (variance + eps).rsqrt()
    if weight is not None:
        scale = scale * weight.to(scale.dtype)
    out = (x.to(mean.dtype) - mean.view(shape)) * scale.view(shape)
    if bias is not None:
        out = out + bias.to(out.dtype).view(shape)
    return out.to(x.dtype)


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

    In training it is collective and makes a pass over all rows. ValueError if all ranks together
    have one value per channel.
    """
    if not isinstance(input, OffloadedTensor):
        refuse("batch_norm", "parameters or statistics are offloaded, the input is not")
    if not input._content.is_storable or input.dim() < 2:
        arguments = (running_mean, running_var, weight, bias, training, momentum, eps)
        of_view: Tensor = record(F.batch_norm, (input, *arguments), {})
        return of_view
    check_parameters((weight, bias), input.layout.group)
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("running_mean and running_var must be given in evaluation")
        frozen: Tensor = record(
            _normalize, (input, running_mean, running_var, weight, bias, eps), {}
        )
        return frozen
    count = input.numel() // max(input.shape[1], 1)
    if count == 1:
        raise ValueError(
            "Expected more than 1 value per channel when training, got input size "
            f"{tuple(input.shape)}"
        )
    operand = row_operand(input)
    if input.requires_grad and torch.is_grad_enabled():
        operand = make_boundary(input)
        mean, variance = ChannelStatistics.apply(operand.identity, operand)
    else:
        mean, variance = channel_statistics(operand)
    with torch.no_grad():
        update_running(running_mean, running_var, mean.detach(), variance.detach(), count, momentum)
    result: Tensor = record(_normalize, (input, mean, variance, weight, bias, eps), {})
    return result


RULES[F.batch_norm] = batch_norm
RULES[torch.batch_norm] = lambda x, w, b, m, v, training, momentum, eps, _=True: batch_norm(
    x, m, v, w, b, training, momentum, eps
)
