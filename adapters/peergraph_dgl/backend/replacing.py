"""Functions of DGL that ours take the place of, and how they are put back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Replacements:
    """Functions of modules and methods of classes, replaced together. False while none is."""

    def __init__(self) -> None:
        self._originals: dict[tuple[Any, str], Any] = {}

    def __bool__(self) -> bool:
        return bool(self._originals)

    def replace(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        """Has ``owner.name(...)`` call ``replacement(original, ...)``."""
        original = getattr(owner, name)
        self._originals[owner, name] = original

        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        setattr(owner, name, replaced)

    def undo(self) -> None:
        """Puts back what was there before."""
        for (owner, name), original in self._originals.items():
            setattr(owner, name, original)
        self._originals.clear()
