"""A decorator for gradients that cannot be differentiated again."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

_Gradients = TypeVar("_Gradients")


def once_differentiable(backward: Callable[[Any, Tensor], _Gradients]) -> Callable[..., _Gradients]:
    """Makes a function's backward refuse ``create_graph=True``.

    torch's own decorator sees only whether the incoming gradient needs one: second derivatives by
    way of saved tensors would be lost silently.
    """

    @wraps(backward)
    def checked(ctx: Any, grad: Tensor) -> _Gradients:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise NotImplementedError(
                "create_graph=True: aggregation can be differentiated once only"
            )
        if not torch.compiler.is_compiling() and not torch._C._has_storage(grad):
            raise NotImplementedError("is_grads_batched: aggregation takes one gradient at a time")
        return backward(ctx, grad)

    return checked
