"""The base class of functions of autograd: no gradient comes in, no gradient goes out."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

__all__ = ["Function"]

_Method = Callable[..., Any]


class Function(torch.autograd.Function):
    """A function whose arguments have no gradient where its results have none, as in torch.

    torch's own class hands zeros to `backward` for results without a gradient. A parameter that the
    loss does not use would then have a gradient of zeros, which weight decay and momentum move, in
    place of None.

    `backward` is called if a result has a gradient. Those of its other results may be None, which
    it passes on as None to the arguments that no other result reads. So a function that takes part
    in a collective has to have a gradient on all ranks or on none; functions with several results
    whose gradients may differ in that ask the other ranks
    (:func:`peergraph.fullgraph.exchange.local_operands.sums_of_gradients`).
    """

    if TYPE_CHECKING:  # torch's own method has no types

        @classmethod
        def apply(cls, *args: Any) -> Any:
            """Returns what `forward` returns for these arguments, with a gradient."""

    def __init_subclass__(cls) -> None:
        for name, decorate in (("forward", _without_zeros), ("backward", _skipping_none)):
            method = cls.__dict__.get(name)
            if method is not None:
                setattr(cls, name, staticmethod(decorate(method.__func__)))


def _without_zeros(forward: _Method) -> _Method:
    @wraps(forward)
    def run(ctx: Any, *args: Any) -> Any:
        if not torch.compiler.is_compiling():  # which writes a backward pass for all gradients
            ctx.set_materialize_grads(False)
        return forward(ctx, *args)

    return run


def _skipping_none(backward: _Method) -> _Method:
    @wraps(backward)
    def run(ctx: Any, *grads: Tensor | None) -> Any:
        for grad in grads:
            if grad is not None:
                return backward(ctx, *grads)
        return (None,) * len(ctx.needs_input_grad)

    return run
