"""Parameters are plain tensors that every rank holds: their values must be equal."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from peergraph.fullgraph.exchange.replicas import Replicas
from peergraph.fullgraph.exchange.transport import Transport, reductions_of
from peergraph.fullgraph.layout.content_digest import content_digest
from peergraph.fullgraph.layout.ranks import Ranks

# Steps of autograd, from a plain tensor back to parameters, that are looked at.
_MOST_STEPS = 32

_met: dict[int, weakref.ref[Tensor]] = {}


def check_parameters(args: tuple[Any, ...], group: Ranks | None = None) -> None:
    """Makes the parameters among `args` equal on all ranks at their first use. Collective then.

    Where ranks differ at the first use, rank 0's values overwrite the others', with a warning. From
    then on the values of each use are compared with the next sum over ranks: :class:`Replicas`.
    So are those of parameters that a plain tensor among `args` was computed from.

    Args:
        args: arguments of an operation; what is no plain tensor is ignored.
        group: the ranks; by default those of the partitioned tensors among `args`.

    Raises:
        ValueError: a parameter has other shapes on other ranks, or replicas differ.
    """
    for arg in args:
        kind = type(arg)
        if kind is Parameter or (kind is Tensor and _has_history(arg)):
            owner = group or _group_of(args)
            if owner is None or owner.world_size == 1 or not reductions_of(owner).one_part_a_rank:
                return  # one rank, or a chunk of rows, whose parameters were seen before
            for parameter in (arg,) if kind is Parameter else _origins(arg):
                if kind is Parameter and id(parameter) not in _met:
                    _meet(parameter, owner)
                Replicas.of(owner).note(parameter)


def _has_history(tensor: Tensor) -> bool:
    try:
        return tensor.grad_fn is not None
    except RuntimeError:  # a view that was made and changed without gradients
        return False


def _origins(tensor: Tensor) -> Iterator[Parameter]:
    """Yields parameters that a tensor was computed from, in few steps."""
    steps, num_steps = [tensor.grad_fn], 0
    while steps and num_steps < _MOST_STEPS:
        step = steps.pop()
        num_steps += 1
        variable = getattr(step, "variable", None)
        if type(variable) is Parameter:
            yield variable
        elif step is not None:
            steps.extend(before for before, _ in step.next_functions)


def _group_of(args: tuple[Any, ...]) -> Ranks | None:
    for arg in args:
        if isinstance(arg, (list, tuple)):
            group = _group_of(tuple(arg))
        else:
            group = getattr(getattr(arg, "row_layout", None), "group", None)
        if group is not None:
            return group
    return None


def _meet(parameter: Parameter, group: Ranks) -> None:
    key = id(parameter)
    _met[key] = weakref.ref(parameter, lambda _: _met.pop(key, None))
    values = parameter.detach().contiguous()
    digest = (tuple(values.shape), str(values.dtype), content_digest(values))
    digests = group.all_gather(digest)
    if all(other == digests[0] for other in digests):
        return
    if any(other[:2] != digests[0][:2] for other in digests):
        shapes = [f"{shape} {dtype}" for shape, dtype, _ in digests]
        raise ValueError(f"a parameter has other shapes on other ranks: {', '.join(shapes)}")
    if group.rank == 0:
        warnings.warn(
            f"a parameter of shape {tuple(values.shape)} has other values on other ranks, so rank "
            "0's are taken; call torch.manual_seed with the same seed on every rank",
            stacklevel=4,
        )
    Transport.of(group).broadcast(values)
    with torch.no_grad():
        parameter.copy_(values)
