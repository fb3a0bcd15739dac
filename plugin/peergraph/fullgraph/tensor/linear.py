"""Linear layers of rows: one local product, and one sum over the ranks for all parameters."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.autograd import Function
from peergraph.fullgraph.exchange.replicas import sum_of_ranks
from peergraph.fullgraph.layout.ranks import Ranks
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows
from peergraph.fullgraph.tensor.conversions import take_rows
from peergraph.fullgraph.tensor.partitioned_tensor import (
    PartitionedTensor,
    apply_to_rows,
    wrap,
)
from peergraph.fullgraph.tensor.registry import chunk_rule, function_rule


@function_rule(F.linear)
def linear(input: Any, weight: Any, bias: Any = None) -> Tensor:
    """As `F.linear`; other layouts than rows and plain parameters go through their products."""
    if (
        not isinstance(input, PartitionedTensor)
        or input.partitioned_dim == input._local.dim() - 1
        or isinstance(weight, PartitionedTensor)
        or isinstance(bias, PartitionedTensor)
        or weight.dim() != 2
        or torch.is_autocast_enabled(input._local.device.type)
    ):
        with torch._C.DisableTorchFunctionSubclass():
            return F.linear(input, weight, bias)
    if torch.is_grad_enabled() and (
        weight.requires_grad or input.requires_grad or (bias is not None and bias.requires_grad)
    ):
        result: Tensor = apply_to_rows(Linear, input, weight, bias)
        return result
    return wrap(F.linear(input._local, weight, bias), input.row_layout, input.partitioned_dim)


@chunk_rule(F.linear)
def _linear_of_chunk(input: Any, weight: Any, bias: Any = None) -> ChunkRows | None:
    if type(input) is not ChunkRows or input.partitioned_dim == input.dim() - 1:
        return None
    if not isinstance(weight, Tensor) or weight.dim() != 2 or type(bias) is ChunkRows:
        return None
    return input.with_rows(F.linear(input.rows, weight, bias))


class Linear(Function):
    """`x @ weight.T + bias`; backward adds up the parameters' gradients in one collective."""

    @staticmethod
    def forward(
        ctx: Any, x: PartitionedTensor, weight: Tensor, bias: Tensor | None
    ) -> PartitionedTensor:
        ctx.save_for_backward(x, weight)
        ctx.row_layout, ctx.dim = x.row_layout, x.partitioned_dim
        return wrap(F.linear(x._local, weight, bias), x.row_layout, x.partitioned_dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        # Hooks on saved tensors may have made a plain tensor of all rows.
        x, grad = (take_rows(rows, ctx.row_layout, ctx.dim) for rows in (x, grad))
        if torch.is_grad_enabled():  # to be differentiated again
            rows, outputs = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
            return (
                grad @ weight if for_x else None,
                rows.t() @ outputs if for_weight else None,
                rows.sum(0) if for_bias else None,
            )
        local = grad._local
        x_grad = wrap(local @ weight, ctx.row_layout, ctx.dim) if for_x else None
        rows = local.reshape(-1, local.shape[-1])
        weight_grad = bias_grad = None
        if for_weight:
            weight_grad = rows.t() @ x._local.reshape(-1, x._local.shape[-1])
        if for_bias:
            bias_grad = rows.sum(0)
        return x_grad, *_sum_over_ranks(ctx.row_layout.group, weight_grad, bias_grad)


def _sum_over_ranks(
    group: Ranks, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    if weight is None or bias is None or group.world_size == 1:
        return (
            None if weight is None else sum_of_ranks(weight, group),
            None if bias is None else sum_of_ranks(bias, group),
        )
    both = sum_of_ranks(torch.cat([weight.view(-1), bias]), group)
    return both[: weight.numel()].view(weight.shape), both[weight.numel() :]
