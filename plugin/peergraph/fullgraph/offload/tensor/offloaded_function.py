"""Nodes of autograd over offloaded rows, which save tensors for themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from peergraph.autograd import Function

_hooks = torch._C._autograd
# torch 2.4 does not say what hooks there are: they get what is saved.
_SAYS_HOOKS = hasattr(_hooks, "_top_saved_tensors_default_hooks")


class OffloadedFunction(Function):
    """A function of offloaded rows. Hooks on saved tensors do not get what it saves.

    The rows are outside of the device already, and which of them a node saves depends on what was
    computed before: ``torch.utils.checkpoint``, which computes a part of a model again and counts
    the tensors that it saves, would find another number.
    """

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Runs the function."""
        with without_hooks():
            return super().apply(*args)


@contextmanager
def without_hooks() -> Iterator[None]:
    """Within the context, saved tensors are not handed to the hooks of contexts around it."""
    # Hooks that return what they get would not do: they get detached copies.
    hooks = []
    while _SAYS_HOOKS and (top := _hooks._top_saved_tensors_default_hooks(False)) is not None:
        hooks.append(top)
        _hooks._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            _hooks._push_saved_tensors_default_hooks(pack, unpack)
