"""Losses over partitioned rows: local sums, added up over the ranks, divided by global counts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import _reduction

from peergraph.fullgraph.exchange.local_operands import sum_over_ranks
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.arguments import require_same_rows
from peergraph.fullgraph.tensor.conversions import (
    distribute,
    from_local,
    redistribute,
    replicated,
)
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.pointwise import localize
from peergraph.fullgraph.tensor.registry import FUNCTION_RULES

_ELEMENTWISE = (
    *(F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div),
    *(F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.soft_margin_loss),
    *(F.poisson_nll_loss, F.gaussian_nll_loss, F.hinge_embedding_loss, F.margin_ranking_loss),
)


def _register_elementwise(loss: Callable[..., Tensor]) -> None:
    signature = inspect.signature(loss)

    def run(*args: Any, **kwargs: Any) -> Tensor:
        bound, reduction = _bind(signature, args, kwargs)
        arguments = bound.arguments
        names = [name for name, value in arguments.items() if isinstance(value, Tensor)]
        first, locals_ = localize(loss.__name__, tuple(arguments[name] for name in names))
        assert isinstance(first, PartitionedTensor)
        shape = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
            *(arguments[name].shape for name in names if name in _SHAPES)
        )
        for name, local in zip(names, locals_, strict=True):
            arguments[name] = _enter(arguments[name], local, first)
        arguments["reduction"] = "none" if reduction == "none" else "sum"
        result = loss(*bound.args, **bound.kwargs)
        if reduction == "none":
            dim = first.partitioned_dim - first._local.dim() + len(shape)
            return from_local(result, first.row_layout, dim)
        total = sum_over_ranks(result, first.row_layout.group)
        if reduction == "mean":
            return total / torch.Size(shape).numel()
        return total / shape[0] if reduction == "batchmean" else total

    FUNCTION_RULES[loss] = run


# Arguments that decide the number of elements of a loss.
_SHAPES = ("input", "target", "input1", "input2", "var")
for _loss in _ELEMENTWISE:
    _register_elementwise(_loss)


def _enter(value: Tensor, local: Tensor, like: PartitionedTensor) -> Tensor:
    """An argument of a local computation, with its gradient."""
    if isinstance(value, PartitionedTensor):
        if value.row_layout is not like.row_layout:
            value = redistribute(value, like.row_layout)
        return value.to_local()
    # A plain tensor is equal on all ranks, or this rank's rows of one that follows a list of ids.
    if value is not local and not value.requires_grad:
        return local
    plain = replicated(value, like.row_layout.group)
    return localize("loss", (like, plain))[1][1]  # type: ignore[no-any-return]


def _bind(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[inspect.BoundArguments, str]:
    """Returns the arguments of a loss, with those that have defaults, and its reduction."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound, _reduction_of(bound.arguments)


def _reduction_of(arguments: dict[str, Any]) -> str:
    size_average, reduce = arguments.pop("size_average", None), arguments.pop("reduce", None)
    if size_average is not None or reduce is not None:
        legacy: str = _reduction.legacy_get_string(size_average, reduce)
        return legacy
    reduction: str = arguments["reduction"]
    if reduction not in ("none", "mean", "sum", "batchmean"):
        raise ValueError(f'reduction must be "none", "mean" or "sum", got {reduction!r}')
    return reduction


def _register_class_loss(loss: Callable[..., Tensor]) -> None:
    """Registers a loss of rows of classes; the mean is over all ranks' rows."""
    signature = inspect.signature(loss)

    def run(*args: Any, **kwargs: Any) -> Tensor:
        bound, reduction = _bind(signature, args, kwargs)
        arguments = bound.arguments
        layout = _enter_classes(loss.__name__, arguments)
        group, labels, weight = layout.group, arguments["target"], arguments["weight"]
        whole = reduction == "none" or group.world_size == 1
        arguments["reduction"] = reduction if whole else "sum"
        result = loss(**arguments)
        if reduction == "none":
            return from_local(result, layout, 0)
        if group.world_size == 1:
            return result
        if reduction == "sum":
            return sum_over_ranks(result, group)
        if labels.is_floating_point():
            places = layout.size * math.prod(labels.shape[2:])
            return sum_over_ranks(result / places, group)
        counted = labels != arguments["ignore_index"]
        if weight is None:
            divisor = counted.sum().to(result.dtype)
        else:
            divisor = (weight[torch.where(counted, labels, 0)] * counted).sum()
        both = sum_over_ranks(torch.stack([result, divisor]), group)
        mean: Tensor = both[0] / both[1]
        return mean

    FUNCTION_RULES[loss] = run


def _enter_classes(name: str, arguments: dict[str, Any]) -> RowLayout:
    """Makes the rows, labels and weights of classes those of this rank; returns their layout."""
    input, target = arguments["input"], arguments["target"]
    if isinstance(input, PartitionedTensor) and input.row_layout.by_ids:
        if not isinstance(target, PartitionedTensor):  # it follows the list of ids
            target = distribute(target, input.row_layout)
        elif target.row_layout is not input.row_layout:
            target = redistribute(target, input.row_layout)
    for argument, value in (("input", input), ("target", target)):
        if not isinstance(value, PartitionedTensor) or value.partitioned_dim != 0:
            raise ValueError(
                f"{name}: {argument} must be partitioned along its rows as the other is, got "
                f"{type(value).__name__} of shape {tuple(value.shape)}: "
                "see peergraph.fullgraph.like"
            )
    layout: RowLayout = input.row_layout
    require_same_rows(name, layout, target.row_layout)
    arguments["input"], arguments["target"] = input.to_local(), target.to_local()
    if arguments["weight"] is not None:
        arguments["weight"] = replicated(arguments["weight"], layout.group)
    return layout


_register_class_loss(F.cross_entropy)
_register_class_loss(F.nll_loss)
