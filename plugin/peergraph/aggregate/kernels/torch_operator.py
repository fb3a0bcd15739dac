"""Makes operators of torch from functions on tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


def is_traced() -> bool:
    """Whether something looks at torch's operations as they run, as torch.compile, ``make_fx`` and
    fake tensors do: it would not see what kernels write.
    """
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


def kernel(
    schema: str, fake: Callable[_Args, _Result]
) -> Callable[[Callable[_Args, _Result]], Callable[_Args, _Result]]:
    """Decorates a function on plain tensors, without autograd, as operator `peergraph::NAME`.

    Only a trace (:func:`is_traced`) calls the operator. Otherwise the function is called itself:
    the dispatcher would cost more than the launch of a kernel.

    Args:
        schema: of the operator.
        fake: makes its results, of the right shapes and dtypes, without computing them.
    """

    def decorate(function: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
        name = f"peergraph::{function.__name__}"
        operator = torch.library.custom_op(name, function, mutates_args=(), schema=schema)
        operator.register_fake(fake)

        @wraps(function)
        def call(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            if is_traced():
                result: _Result = operator(*args, **kwargs)
                return result
            return function(*args, **kwargs)

        return call

    return decorate
