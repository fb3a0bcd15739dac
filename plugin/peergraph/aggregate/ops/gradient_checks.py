"""Decorators of gradients: which ones can be differentiated again, and which ones cannot."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

_Gradients = TypeVar("_Gradients")
_Backward = Callable[..., _Gradients]


def unbatched(backward: _Backward[_Gradients]) -> _Backward[_Gradients]:
    """Makes a function's backward refuse ``is_grads_batched=True``."""

    @wraps(backward)
    def checked(ctx: Any, *grads: Tensor | None) -> _Gradients:
        if not torch.compiler.is_compiling():
            for grad in grads:
                if grad is not None and not torch._C._has_storage(grad):
                    raise NotImplementedError(
                        "is_grads_batched: aggregation takes one gradient at a time"
                    )
        return backward(ctx, *grads)

    return checked


def once_differentiable(
    operation: str,
) -> Callable[[_Backward[_Gradients]], _Backward[_Gradients]]:
    """Makes a function's backward refuse ``create_graph=True`` and ``is_grads_batched=True``.

    torch's own decorator sees only whether the incoming gradient needs one: second derivatives by
    way of saved tensors would be lost silently.

    Args:
        operation: its name in the error.
    """

    def decorate(backward: _Backward[_Gradients]) -> _Backward[_Gradients]:
        unbatched_backward = unbatched(backward)

        @wraps(backward)
        def checked(ctx: Any, *grads: Tensor | None) -> _Gradients:
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                raise NotImplementedError(
                    f"create_graph=True: {operation} can be differentiated once only; sums, means "
                    "and linear layers over them can be differentiated again, as can the "
                    "framework's own layers (revert the model)"
                )
            return unbatched_backward(ctx, *grads)

        return checked

    return decorate
