"""Which rule serves which operation on partitioned tensors.

Two kinds of rules. A rule of an ATen overload runs below autograd, on detached tensors, in forward
and backward: it computes on local rows and wraps the result; autograd differentiates the operation
as for plain tensors. A rule of a function replaces a Python call above autograd: it composes
operations that are differentiable themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload

Rule = Callable[..., Any]
_AnyRule = TypeVar("_AnyRule", bound=Rule)

RULES: dict[OpOverload, Rule] = {}
"""Rules of ATen overloads. A rule is called with the arguments of the operation."""

FUNCTION_RULES: dict[Callable[..., Any], Rule] = {}
"""Rules of functions and methods of torch. A rule is called with the arguments of the function."""

OFFLOADED_RULES: dict[Callable[..., Any], Rule] = {}
"""Those of offloaded rows; functions that have none here are recorded. Many serve rows on the
device, too: they call other functions of torch, and :func:`run_as_is` where there is nothing to do
but to run the function."""

CHUNK_RULES: dict[Callable[..., Any], Rule] = {}
"""Rules of functions on the plain rows of a chunk (:class:`ChunkRows`), which take less of the
host's time: the results of the rules of partitioned tensors. A rule is called with the arguments of
the function, and returns None for those that it does not serve."""

DRAWING_CHUNK_RULES: set[Rule] = set()
"""Those that draw random numbers: called with the keyword `seeds`."""

METHODS: dict[str, Callable[..., Any]] = {}
"""What methods of tensors call, by name. It is defined on top of the tensors: modules that import
them register it, as they do with rules, so that no file needs one that needs it."""

FAMILIES: list[Callable[[OpOverload], Rule | None]] = []
"""Makers of rules for overloads that have none: each returns a rule, or None for other overloads.

The first that returns a rule decides, once for each overload.
"""


def register_in(table: dict[Any, Any], *keys: Any) -> Callable[[_AnyRule], _AnyRule]:
    """Registers the decorated function in a table."""

    def register(function: _AnyRule) -> _AnyRule:
        table.update(dict.fromkeys(keys, function))
        return function

    return register


def rule(*overloads: OpOverload) -> Callable[[_AnyRule], _AnyRule]:
    """Registers the decorated function as the rule of `overloads`."""
    return register_in(RULES, *overloads)


def function_rule(
    *functions: Callable[..., Any], anywhere: bool = False
) -> Callable[[_AnyRule], _AnyRule]:
    """Registers the decorated function as the rule of `functions` of torch.

    Args:
        anywhere: whether the rule serves offloaded rows, too: see :data:`OFFLOADED_RULES`.
    """

    def register(function: _AnyRule) -> _AnyRule:
        if anywhere:
            offloaded_rule(*functions)(function)
        return register_in(FUNCTION_RULES, *functions)(function)

    return register


def offloaded_rule(*functions: Callable[..., Any]) -> Callable[[_AnyRule], _AnyRule]:
    """Registers the decorated function in :data:`OFFLOADED_RULES`."""
    return register_in(OFFLOADED_RULES, *functions)


def chunk_rule(
    *functions: Callable[..., Any], draws: bool = False
) -> Callable[[_AnyRule], _AnyRule]:
    """Registers the decorated function in :data:`CHUNK_RULES`, and where it `draws`, as such."""

    def register(function: _AnyRule) -> _AnyRule:
        if draws:
            DRAWING_CHUNK_RULES.add(function)
        return register_in(CHUNK_RULES, *functions)(function)

    return register


def method(name: str) -> Callable[[_AnyRule], _AnyRule]:
    """Registers the decorated function in :data:`METHODS`."""
    return register_in(METHODS, name)


def family(
    function: Callable[[OpOverload], Rule | None],
) -> Callable[[OpOverload], Rule | None]:
    """Registers the decorated function as a maker of rules: see :data:`FAMILIES`."""
    FAMILIES.append(function)
    return function


def find_rule(overload: OpOverload) -> Rule:
    """Returns the rule of an overload, made by its family where it is no rule of its own.

    An operation that torch defines by others is computed by these.

    Raises:
        NotImplementedError: there is none.
    """
    for make in FAMILIES:
        rule = make(overload)
        if rule is not None:
            RULES[overload] = rule
            return rule
    if torch._C._dispatch_has_kernel_for_dispatch_key(
        str(overload.name()),  # type: ignore[no-untyped-call]
        torch._C.DispatchKey.CompositeImplicitAutograd,
    ):
        # Outside of inference mode, autograd takes these apart before.
        RULES[overload] = _decomposed(overload)
        return RULES[overload]
    raise NotImplementedError(
        f"{overload} is not implemented for partitioned tensors: compute on this rank's rows, "
        "x.to_local(), and wrap them with peergraph.fullgraph.from_local, or gather all rows with "
        "x.full_tensor()"
    )


def _decomposed(overload: OpOverload) -> Rule:
    """Returns an operation that torch defines by others, with views that torch sees as such.

    In inference mode, too, a view of a tensor that needs gradients needs them.
    """
    views_key = torch._C.DispatchKey.ADInplaceOrView
    name = str(overload.name())  # type: ignore[no-untyped-call]
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, views_key):
        return overload.decompose

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._SetExcludeDispatchKeyGuard(views_key, False):
            return overload.decompose(*args, **kwargs)

    return run
