"""Reversible replacement of functions and attributes of a framework."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from types import FunctionType
from typing import Any


class Patches:
    """Attributes of modules and classes of one framework, replaced together.

    The object is false while nothing is replaced, so that ``if not patches: ...`` installs the
    replacements once.

    Args:
        package: the distribution that the attributes belong to, such as ``"torch_geometric"``.
        written_for: the version for which the replacements were written; errors name it.
    """

    def __init__(self, package: str, written_for: str) -> None:
        self.package = package
        self.written_for = written_for
        self._originals: dict[tuple[Any, str], tuple[bool, Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._originals)

    def replace(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        """Makes ``owner.name(...)`` call ``replacement(original, ...)``.

        The new function keeps the signature and the docstring of the original.

        Args:
            owner: the module or class.
            name: the name of a function or method, which a class may inherit.
            replacement: called with the original function and then the call's arguments.

        Raises:
            AttributeError: the installed version of the package has no such function.
        """
        original = self._get(owner, name)

        self.set(owner, name, _wrapper(original, replacement))

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replaces the value of an existing attribute.

        Args:
            owner: the module or class.
            name: the name of the attribute.
            value: the new value.

        Raises:
            AttributeError: the installed version of the package has no such attribute.
        """
        self._get(owner, name)
        attributes = vars(owner)
        self._originals.setdefault((owner, name), (name in attributes, attributes.get(name)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Restores every attribute that was replaced."""
        for (owner, name), (is_own, original) in self._originals.items():
            if is_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
        self._originals.clear()

    def _get(self, owner: Any, name: str) -> Any:
        try:
            return getattr(owner, name)
        except AttributeError:
            where = getattr(owner, "__qualname__", owner.__name__)
            raise AttributeError(
                f"{self.package} {installed_version(self.package)} has no {where}.{name}, which "
                f"Peergraph replaces; its adapter was written for {self.written_for}"
            ) from None


def _wrapper(original: Any, replacement: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls ``replacement(original, ...)`` and looks like the original."""

    def replaced(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    # TorchScript compiles the source of the original, and looks up its names in these globals.
    names = getattr(original, "__globals__", replaced.__globals__)
    closure = replaced.__closure__
    return functools.wraps(original)(FunctionType(replaced.__code__, names, closure=closure))


def installed_version(package: str) -> str:
    """Returns the version of an installed distribution, ``"(unknown version)"`` if it has none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "(unknown version)"
