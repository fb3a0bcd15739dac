"""Brings tensors into code that runs on this rank's rows, and their gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.ops.gradient_checks import unbatched
from peergraph.autograd import Function
from peergraph.fullgraph.exchange.halo import Halo, add_to_owners
from peergraph.fullgraph.exchange.replicas import sum_of_ranks
from peergraph.fullgraph.exchange.route import linear
from peergraph.fullgraph.exchange.transport import split_rows
from peergraph.fullgraph.layout.ranks import Ranks


def local_operands(
    plan: Halo, sources: Sequence[Tensor | None], parameters: Sequence[Tensor | None] = ()
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Returns operands for code that runs on the extended rows of this rank. Collective.

    All operands enter in one step of autograd, so that their gradients are exchanged in the same
    order on all ranks, even if a rank without rows does not use one of them. Gradients of sources
    are added at their owners (:meth:`Halo.add_to_owners`), those of parameters over all ranks
    in one reduction for each dtype. Inputs that need no gradient have none exchanged.

    Args:
        plan: which rows are exchanged.
        sources: each [local rows, *features] or None.
        parameters: tensors that are equal on all ranks, or None.

    Returns:
        For each source [extended rows, *features] or None; for each parameter its value or None.
    """
    tensors = [*sources, *parameters]
    group = plan.row_layout.group
    if group.world_size == 1 or all(tensor is None for tensor in tensors):
        return list(sources), list(parameters)
    results = iter(_Enter.apply(group, plan, len(sources), None, *tensors))
    entered = [None if tensor is None else next(results) for tensor in tensors]
    return entered[: len(sources)], entered[len(sources) :]


class _Enter(Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: Ranks,
        plan: Halo | None,
        num_sources: int,
        used: set[int] | None,
        *tensors: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ctx.group, ctx.plan, ctx.num_sources, ctx.used = group, plan, num_sources, used
        ctx.like = [None if tensor is None else tensor.detach() for tensor in tensors[num_sources:]]
        ctx.are_tensors = [tensor is not None for tensor in tensors]
        entered = []
        for i, tensor in enumerate(tensors):
            if tensor is not None:
                extended = plan.gather(tensor) if plan is not None and i < num_sources else tensor
                entered.append(tensor.view_as(tensor) if extended is tensor else extended)
        return tuple(entered)

    @staticmethod
    @unbatched
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        rest = iter(grads)
        by_input = [next(rest) if has_tensor else None for has_tensor in ctx.are_tensors]
        needs, count = ctx.needs_input_grad[4:], ctx.num_sources
        if ctx.used is not None:
            needs = [place in ctx.used for place in range(len(needs))]
        gradients: list[Tensor | None] = [None] * len(by_input)
        sources = [(i, grad) for i, grad in enumerate(by_input[:count]) if needs[i]]
        some = [(i, grad) for i, grad in sources if grad is not None]
        if some and len(some) < len(sources):  # the same ones on all ranks, whose names are checked
            names = ", ".join(str(i) for i, _ in some)
            ctx.plan.transport.announce(f"gradients of operands {names}", some[0][1])
        for i, grad in some:
            gradients[i] = add_to_owners(ctx.plan, grad)
        gradients[count:] = sums_of_gradients(ctx.group, by_input[count:], ctx.like, needs[count:])
        return None, None, None, None, *gradients


class ReplicasTogether:
    """Parameters of several steps, whose gradients are added up over the ranks at once.

    Args:
        tensors: parameters, those that need no gradient among them.
        group: the ranks.
    """

    def __init__(self, tensors: Sequence[Tensor], group: Ranks) -> None:
        unique = {id(tensor): tensor for tensor in tensors if tensor.requires_grad}
        self._places = {key: place for place, key in enumerate(unique)}
        self._tensors = list(unique.values())
        self._used: set[int] = set()
        self._entered: tuple[Tensor, ...] = ()
        if self._tensors and torch.is_grad_enabled():
            self._entered = enter_replicas(group, self._tensors, self._used)

    def enter(self, tensor: Tensor | None) -> Tensor | None:
        """Returns a tensor for computations on local rows; None for one that is not among them."""
        place = self._places.get(id(tensor)) if self._entered else None
        if place is None:
            return None
        self._used.add(place)
        return self._entered[place]


def enter_replicas(
    group: Ranks, tensors: Sequence[Tensor], used: set[int] | None = None
) -> tuple[Tensor, ...]:
    """Returns tensors for computations on local rows; their gradients are added up at once.

    Args:
        group: the ranks.
        tensors: equal on all ranks.
        used: the places of those that have a gradient on a rank, read when the gradients come;
            None: of those that need one.
    """
    entered: tuple[Tensor, ...] = _Enter.apply(group, None, 0, used, *tensors)
    return entered


def sum_over_ranks(tensor: Tensor, group: Ranks) -> Tensor:
    """Returns the sum of each rank's plain tensor, equal on all ranks. Differentiable; collective.

    Each rank computes with the gradient on its own rows.
    """
    if group.world_size == 1:
        return tensor
    return linear(tensor, partial(_sum, group=group), _same)


def replica(tensor: Tensor, group: Ranks) -> Tensor:
    """Returns the tensor; its gradient is added up over the ranks."""
    return linear(tensor, _same, partial(_sum, group=group))


def _sum(tensor: Tensor, group: Ranks) -> Tensor:
    return sum_of_ranks(tensor.detach().clone(), group)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def sums_of_gradients(
    group: Ranks,
    grads: Sequence[Tensor | None],
    like: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """Returns the sums over the ranks of gradients; None for one that no rank has. Collective.

    All ranks take part for each, with zeros for a gradient that a rank does not have: local
    operations on no rows may use other tensors than those on some. Beside its gradients, a rank
    sends which ones it has. A rank that lacks one waits for the answer.

    Args:
        group: the ranks.
        grads: of tensors that are equal on all ranks.
        like: these tensors.
        needs: whose gradients are added up, equal on all ranks.
    """
    results: list[Tensor | None] = [None] * len(grads)
    by_dtype: dict[torch.dtype, list[tuple[int, Tensor]]] = {}
    for place, tensor in enumerate(like):
        if needs[place] and tensor is not None:
            by_dtype.setdefault(tensor.dtype, []).append((place, tensor))
    for same in by_dtype.values():
        parts, is_there = [], same[0][1].new_ones(len(same))
        for number, (place, tensor) in enumerate(same):
            grad = grads[place]
            if grad is None:
                is_there[number].zero_()
            parts.append(tensor.new_zeros(tensor.numel()) if grad is None else grad.reshape(-1))
        total = sum_over_ranks(torch.cat([*parts, is_there]), group)
        sums = split_rows(total, [*(part.numel() for part in parts), len(same)])
        counts = _counts(sums[-1], any(grads[place] is None for place, _ in same))
        for (place, tensor), part, count in zip(same, sums, counts, strict=False):
            if grads[place] is not None or count:
                results[place] = part.view(tensor.shape)
    return results


def _counts(ranks: Tensor, are_read: bool) -> list[float]:
    """Returns how many ranks have each gradient; zeros if that is not read, which waits for a GPU.

    A graph that is being captured cannot wait: it does as the steps before, which have asked.
    """
    is_captured = ranks.is_cuda and torch.cuda.is_current_stream_capturing()
    numbers: list[float] = ranks.tolist() if are_read and not is_captured else [0.0] * len(ranks)
    return numbers
