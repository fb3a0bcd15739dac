"""Mean and variance of the channels of offloaded rows: one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.offload.functions.recording import record
from peergraph.fullgraph.offload.gradients.segment import make_boundary, row_operand
from peergraph.fullgraph.offload.passes.chunk_pass import PassChunk
from peergraph.fullgraph.offload.programs.program import Place
from peergraph.fullgraph.offload.programs.record import RowOperand
from peergraph.fullgraph.offload.programs.row_pass import RowPass
from peergraph.fullgraph.offload.tensor.offloaded_function import OffloadedFunction
from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor
from peergraph.fullgraph.tensor.batch_norm import by_channel, statistics_of_ranks
from peergraph.fullgraph.tensor.registry import method

_HALF = (torch.float16, torch.bfloat16)


def channel_statistics(operand: RowOperand) -> tuple[Tensor, Tensor]:
    """Returns mean and biased variance of each channel over all rows. Collective; one pass.

    The chunks' means and sums of squared deviations are combined in their order (Chan et al. 1979),
    then those of the ranks. float64 for float64, else float32.

    Args:
        operand: [rows, channels, ...].
    """
    content = operand.content
    channels = content.features[0]
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
    return statistics_of_ranks(content.row_layout, mean, squares / max(count, 1))


def _combined(
    count: int, mean: Tensor, squares: Tensor, added: int, other: Tensor, other_squares: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and squared deviations of two sets of rows."""
    share = added / (count + added)
    difference = other - mean
    return mean + difference * share, squares + other_squares + difference.square() * share * count


@method("offloaded statistics")
def statistics_of(x: OffloadedTensor) -> tuple[Tensor, Tensor]:
    """Returns mean and biased variance of each channel. Collective; differentiable."""
    if not x._content.is_storable:  # a view that is no rows
        rows: Tensor = x.float() if x.dtype in _HALF else x
        others = [dim for dim in range(x.dim()) if dim != 1]
        variance, mean = torch.var_mean(rows, others, correction=0)
        return mean, variance
    if not (x.requires_grad and torch.is_grad_enabled()):
        return channel_statistics(row_operand(x))
    operand = make_boundary(x)
    mean, variance = ChannelStatistics.apply(operand.identity, operand)
    return mean, variance


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
    centered = x.to(mean.dtype) - by_channel(mean, x)
    grad = centered * by_channel(variance_grad * (2 / count), x) + by_channel(mean_grad / count, x)
    return grad.to(x.dtype)
