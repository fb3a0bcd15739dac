"""Makes operators of torch from functions on tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from types import NoneType
from typing import (  # noqa: UP035
    Any,
    List,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from peergraph.live_bytes import has_dispatch_mode

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")

_operators: dict[Any, tuple[Any, _Parameters]] = {}


def is_traced() -> bool:
    """Returns whether something looks at torch's operations as they run.

    torch.compile, ``make_fx`` and fake tensors do: they would not see what kernels write.
    """
    return torch.compiler.is_compiling() or has_dispatch_mode()


def kernel(
    fake: Callable[..., _Result],
) -> Callable[[Callable[_Args, _Result]], Callable[_Args, _Result]]:
    """Decorates a function on plain tensors, without autograd, as operator `peergraph::NAME`.

    Only a trace (:func:`is_traced`) calls the operator. Otherwise the function is called itself:
    the dispatcher would cost more than the launch of a kernel. The operator's schema is inferred
    from the function's annotations. A parameter that is a dataclass, or a dataclass or None,
    becomes a parameter of the operator for each of its fields.

    Args:
        fake: takes those of the arguments whose names it has as parameters, and makes results of
            the same shapes and dtypes, without values.
    """
    names = inspect.signature(fake).parameters.keys()

    def decorate(function: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
        parameters = _Parameters(function)

        def run(*flat: Any) -> _Result:
            return function(*parameters.unflatten_arguments(flat))  # type: ignore[call-arg]

        def run_fake(*flat: Any) -> _Result:
            arguments = parameters.unflatten_arguments(flat)
            by_name = zip(parameters.names, arguments, strict=True)
            return fake(**{name: value for name, value in by_name if name in names})

        run.__signature__ = parameters.flat_signature()  # type: ignore[attr-defined]
        name = f"peergraph::{function.__name__}"
        operator = torch.library.custom_op(name, run, mutates_args=())
        operator.register_fake(run_fake)

        @wraps(function)
        def call(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            if is_traced():
                return cast("_Result", operator(*parameters.flatten_arguments(*args, **kwargs)))
            return function(*args, **kwargs)

        _operators[call] = operator, parameters
        return call

    return decorate


Gradients = Callable[..., list[Any]]


def add_gradient(function: Callable[..., Any], gradients: Gradients) -> None:
    """Gives the operator of a :func:`kernel` a gradient.

    Args:
        function: decorated by :func:`kernel`.
        gradients: takes what needs a gradient of the operator's parameters, the arguments of the
            function, its result, and a gradient for each tensor of the result; returns a gradient
            or None for each argument of the function; for a dataclass a list of those of its first
            fields.
    """
    operator, parameters = _operators[function]

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        leaves, ctx.spec = tree_flatten((list(inputs), output))
        ctx.is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        ctx.others = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
        ctx.save_for_backward(*(leaf for leaf in leaves if isinstance(leaf, Tensor)))

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        tensors, others = iter(ctx.saved_tensors), iter(ctx.others)
        leaves = [
            next(tensors) if gradients_of_arguments else next(others)
            for gradients_of_arguments in ctx.is_tensor
        ]
        inputs, output = tree_unflatten(leaves, ctx.spec)
        gradients_of_arguments = gradients(
            ctx.needs_input_grad, parameters.unflatten_arguments(inputs), output, *grads
        )
        flat = parameters.flatten_gradients(gradients_of_arguments)
        if any(isinstance(gradient, list) for gradient in flat):
            # torch then wants lists for all lists.
            pairs = zip(flat, inputs, strict=True)
            flat = [[] if value == [] and grad is None else grad for grad, value in pairs]
        return tuple(flat)

    operator.register_autograd(backward, setup_context=setup_context)


class _Parameters:
    """Converts between the arguments of a function and those of its operator.

    A function may take dataclasses. Its operator takes the fields of each as separate arguments.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = get_type_hints(function)
        self._result = hints.pop("return")
        self._types = hints
        self.names = list(hints)
        self._defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.default is not parameter.empty
        }
        self._parts = [list(_paths(annotation)) for annotation in hints.values()]

    def flat_signature(self) -> inspect.Signature:
        """Returns the signature of the operator."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [
            inspect.Parameter(name, kind, annotation=annotation)
            for parameter, annotation in self._types.items()
            for name, annotation in _flat_types(parameter, annotation)
        ]
        return inspect.Signature(parameters, return_annotation=_as_torch_spells(self._result))

    def flatten_arguments(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Returns the operator's arguments for a call of the function.

        torch.compile traces this method.
        """
        named = {**self._defaults, **kwargs}
        values = [*args, *(named[name] for name in self.names[len(args) :])]
        flat = []
        for value, parts in zip(values, self._parts, strict=True):
            for path, absent in parts:
                if value is None:
                    flat.append(absent)
                    continue
                part = value
                for name in path:
                    part = getattr(part, name)
                flat.append(part)
        return flat

    def flatten_gradients(self, gradients: list[Any]) -> list[Any]:
        """Returns the gradients of the operator's arguments from those of the function's."""
        flat: list[Any] = []
        for gradient, parts in zip(gradients, self._parts, strict=True):
            if parts[0][0] == ():
                flat.append(gradient)
            else:
                of_fields = [] if gradient is None else list(gradient)
                flat += [*of_fields, *[None] * (len(parts) - len(of_fields))]
        return flat

    def unflatten_arguments(self, flat: tuple[Any, ...] | list[Any]) -> list[Any]:
        """Returns the function's arguments for a call of the operator."""
        rest = iter(flat)
        return [_joined(annotation, rest) for annotation in self._types.values()]


def _as_torch_spells(annotation: Any) -> Any:
    """The annotation as all versions of torch know it: 2.4 does not know ``list[int]``."""
    if get_origin(annotation) is list:
        spelled: Any = List  # noqa: UP006
        return spelled[get_args(annotation)[0]]
    return annotation


def _struct(annotation: Any) -> Any:
    """The dataclass of a parameter that is one, or one or None; else None."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and is_dataclass(kind):
            return kind
    return None


def _flat_types(name: str, annotation: Any) -> Iterator[tuple[str, Any]]:
    struct = _struct(annotation)
    if struct is None:
        yield name, _as_torch_spells(annotation)
        return
    may_be_none = NoneType in get_args(annotation)
    for field, kind in get_type_hints(struct).items():
        for flat_name, flat_kind in _flat_types(f"{name}_{field}", kind):
            yield flat_name, Tensor | None if may_be_none and flat_kind is Tensor else flat_kind


def _paths(annotation: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The attributes that lead to each flat value, and the value in place of a missing one."""
    struct = _struct(annotation)
    if struct is None:
        yield (), 0 if annotation is int else None
        return
    for field, kind in get_type_hints(struct).items():
        for path, absent in _paths(kind):
            yield (field, *path), absent


def _joined(annotation: Any, rest: Iterator[Any]) -> Any:
    struct = _struct(annotation)
    if struct is None:
        return next(rest)
    kinds = get_type_hints(struct)
    values = [_joined(kinds[field.name], rest) for field in fields(struct)]
    return None if values[0] is None else struct(*values)
