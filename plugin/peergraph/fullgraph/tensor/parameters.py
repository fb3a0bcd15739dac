"""Parameters are plain tensors that every rank holds: their values must be equal."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from peergraph.fullgraph.exchange.transport import Transport
from peergraph.fullgraph.layout.content_digest import content_digest
from peergraph.memory import Group

_checked: dict[int, weakref.ref[Tensor]] = {}


def check_parameters(args: tuple[Any, ...], group: Group | None = None) -> None:
    """Makes the parameters among `args` equal on all ranks at their first use. Collective then.

    Where ranks differ, rank 0's values overwrite the others', with a warning.

    Args:
        args: arguments of an operation; what is no parameter is ignored.
        group: the ranks; by default those of the partitioned tensors among `args`.
    """
    for arg in args:
        if type(arg) is Parameter and id(arg) not in _checked:
            owner = group or _group_of(args)
            if owner is not None:
                _check(arg, owner)


def _group_of(args: tuple[Any, ...]) -> Group | None:
    for arg in args:
        if isinstance(arg, (list, tuple)):
            found = _group_of(tuple(arg))
        else:
            found = getattr(getattr(arg, "layout", None), "group", None)
        if found is not None:
            return found
    return None


def _check(parameter: Parameter, group: Group) -> None:
    key = id(parameter)
    _checked[key] = weakref.ref(parameter, lambda _: _checked.pop(key, None))
    if group.world_size == 1:
        return
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
