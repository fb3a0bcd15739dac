"""Brings tensors into code that runs on this rank's rows, and their gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.ops.gradient_checks import unbatched
from peergraph.fullgraph.exchange.halo import Halo, add_to_owners
from peergraph.fullgraph.exchange.replicas import sum_of_ranks
from peergraph.fullgraph.exchange.transport import Transport, split_rows


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
    given = [*sources, *parameters]
    alone = plan.layout.group.world_size == 1
    if alone or all(tensor is None for tensor in given):
        return list(sources), list(parameters)
    found = iter(_Enter.apply(plan, len(sources), *given))  # type: ignore[no-untyped-call]
    entered = [None if tensor is None else next(found) for tensor in given]
    return entered[: len(sources)], entered[len(sources) :]


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: Halo, num_sources: int, *given: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.plan, ctx.num_sources = plan, num_sources
        ctx.given = [tensor is not None for tensor in given]
        entered = []
        for i, tensor in enumerate(given):
            if tensor is not None:
                found = plan.gather(tensor) if i < num_sources else tensor
                entered.append(tensor.view_as(tensor) if found is tensor else found)
        return tuple(entered)

    @staticmethod
    @unbatched
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rest = iter(grads)
        by_input = [next(rest) if given else None for given in ctx.given]
        needed = ctx.needs_input_grad[2:]
        found: list[Tensor | None] = [None] * len(by_input)
        of_parameters = []
        for i, grad in enumerate(by_input):
            if grad is None or not needed[i]:
                continue
            if i < ctx.num_sources:
                found[i] = add_to_owners(ctx.plan, grad)
            else:
                of_parameters.append(i)
        _reduce(ctx.plan.transport, by_input, found, of_parameters)
        return None, None, *found


class ReplicasTogether:
    """Parameters of several steps, whose gradients are added up over the ranks at once.

    Args:
        tensors: parameters, those that need no gradient among them.
        transport: of the ranks.
    """

    def __init__(self, tensors: Sequence[Tensor], transport: Transport) -> None:
        unique = {id(tensor): tensor for tensor in tensors if tensor.requires_grad}
        self._places = {key: place for place, key in enumerate(unique)}
        self._tensors = list(unique.values())
        self._used: set[int] = set()
        self._entered: tuple[Tensor, ...] = ()
        if self._tensors and torch.is_grad_enabled():
            self._entered = _EnterTogether.apply(transport, self._used, *self._tensors)  # type: ignore[no-untyped-call]

    def enter(self, tensor: Tensor | None) -> Tensor | None:
        """Returns a tensor for computations on local rows; None for one that is not among them."""
        place = self._places.get(id(tensor)) if self._entered else None
        if place is None:
            return None
        self._used.add(place)
        return self._entered[place]


class _EnterTogether(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, transport: Transport, used: set[int], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.transport, ctx.used = transport, used
        ctx.like = [tensor.detach() for tensor in tensors]
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    @unbatched
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        # What was used has a gradient on all ranks, though not on one without rows.
        given = [
            torch.zeros_like(like) if grad is None and place in ctx.used else grad
            for place, (grad, like) in enumerate(zip(grads, ctx.like, strict=True))
        ]
        found: list[Tensor | None] = [None] * len(given)
        which = [place for place, grad in enumerate(given) if grad is not None]
        _reduce(ctx.transport, given, found, which)
        return None, None, *found


class SumOverRanks(torch.autograd.Function):
    """The sum of each rank's plain tensor, equal on all ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, transport: Transport) -> Tensor:
        ctx.transport = transport
        return sum_of_ranks(tensor.detach().clone(), transport.group)

    @staticmethod
    @unbatched
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        # Each rank computes with it on its own rows.
        return (Replicated.apply(grad, ctx.transport) if grad.requires_grad else grad), None  # type: ignore[no-untyped-call]


class Replicated(torch.autograd.Function):
    """Identity with a gradient that is added up over the ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, transport: Transport) -> Tensor:
        ctx.transport = transport
        return tensor.view_as(tensor)

    @staticmethod
    @unbatched
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return SumOverRanks.apply(grad, ctx.transport), None  # type: ignore[no-untyped-call]


def _reduce(
    transport: Transport, grads: list[Tensor | None], found: list[Tensor | None], which: list[int]
) -> None:
    """Stores the sums over ranks of the gradients `which` in `found`."""
    by_dtype: dict[torch.dtype, list[int]] = {}
    for i in which:
        grad = grads[i]
        assert grad is not None
        by_dtype.setdefault(grad.dtype, []).append(i)
    for same in by_dtype.values():
        tensors = [grad for i in same if (grad := grads[i]) is not None]
        total = torch.cat([grad.reshape(-1) for grad in tensors])
        total = SumOverRanks.apply(total, transport)  # type: ignore[no-untyped-call]
        parts = split_rows(total, [grad.numel() for grad in tensors])
        for i, grad, part in zip(same, tensors, parts, strict=True):
            found[i] = part.view(grad.shape)
