"""Nodes of autograd over offloaded rows, which save tensors for themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from peergraph.autograd import Function

_Map = Callable[[Any], Tensor]

_hooks = torch._C._autograd
# torch 2.4 does not say what hooks there are: they get what is saved.
_SAYS_HOOKS = hasattr(_hooks, "_top_saved_tensors_default_hooks")


class OffloadedFunction(Function):
    """A function of offloaded rows. Hooks on saved tensors do not get what it saves.

    The rows are outside of the device already, and which of them a node saves depends on what was
    computed before: ``torch.utils.checkpoint``, which computes a part of a model again and counts
    the tensors that it saves, would find another number.

    A backward pass within ``torch.inference_mode()`` is computed outside of it: functions of chunks
    are differentiated again, and autograd saves no tensors of this mode.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.backward = staticmethod(_outside_inference_mode(cls.backward))  # type: ignore[method-assign]

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Runs the function."""
        with without_hooks():
            return super().apply(*args)


@contextmanager
def without_hooks() -> Iterator[None]:
    """Within the context, saved tensors are not handed to the hooks of contexts around it."""
    # Hooks that return what they get would not do: they get detached copies.
    hooks = []
    while _SAYS_HOOKS and (top := _hooks._top_saved_tensors_default_hooks(False)) is not None:
        hooks.append(top)
        _hooks._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            _hooks._push_saved_tensors_default_hooks(pack, unpack)


def without_inference(part: Any) -> Any:
    """Returns a tensor, or a tuple with tensors, as copies where they are of inference mode."""
    if isinstance(part, tuple):
        return tuple(map(without_inference, part))
    return part.clone() if isinstance(part, Tensor) and part.is_inference() else part


def _outside_inference_mode(backward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(backward)
    def run(ctx: Any, *grads: Tensor | None) -> Any:
        if not torch.is_inference_mode_enabled():
            return backward(ctx, *grads)
        with torch.inference_mode(False), torch.no_grad():
            return backward(ctx, *without_inference(grads))

    return run


class _Linear(OffloadedFunction):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, map_rows: _Map, transposed: _Map) -> Tensor:
        ctx.transposed = transposed
        return map_rows(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed(grad), None, None


def linear_map(rows: Tensor, map_rows: _Map, transposed: _Map) -> Any:
    """Returns what a linear map of rows returns; differentiable.

    Args:
        rows: what is mapped; the node of autograd does not keep them.
        map_rows, transposed: the map and its transpose. Both may be collective.
    """
    return _Linear.apply(rows, map_rows, transposed)
