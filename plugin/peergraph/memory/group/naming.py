"""Names collective functions and methods in errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from peergraph.memory.group.group import Group

P = ParamSpec("P")
T = TypeVar("T")


def collective(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a collective function, so that errors name it, as in :meth:`Group.collective`.

    The group is the first argument that is a group or has an attribute `group`. Without a group
    errors do not name the function.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def named(*args: P.args, **kwargs: P.kwargs) -> T:
            group = _group_of((*args, *kwargs.values()))
            if group is None:
                return function(*args, **kwargs)
            with group.collective(name):
                return function(*args, **kwargs)

        return named

    return decorate


def _group_of(arguments: Iterable[object]) -> Group | None:
    for argument in arguments:
        group = argument if isinstance(argument, Group) else getattr(argument, "group", None)
        if isinstance(group, Group):
            return group
    return None
