"""Runs steps outside of automatic mixed precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

_Result = TypeVar("_Result")


def without_autocast(run: Callable[[], _Result]) -> _Result:
    """Returns ``run()``, with operands in the dtype that they have.

    Frameworks gather and scatter messages so: autocast leaves these steps alone.
    """
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    if not kinds:
        return run()
    if torch.compiler.is_compiling():
        with torch.autocast(kinds[0], enabled=False):
            return without_autocast(run)
    # The context takes as long as several launches.
    for kind in kinds:
        torch.set_autocast_enabled(kind, False)
    try:
        return run()
    finally:
        for kind in kinds:
            torch.set_autocast_enabled(kind, True)
