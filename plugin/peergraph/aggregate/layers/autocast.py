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
    for kind in kinds:
        with torch.autocast(kind, enabled=False):
            return without_autocast(run)
    return run()
