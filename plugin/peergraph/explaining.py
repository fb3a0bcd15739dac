"""`explain`: which code runs a layer's call. The adapter of the layer's framework knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Explain = Callable[..., str]

_explain: list[Explain] = []


def serve(function: Explain) -> None:
    """An adapter's function takes the calls of :func:`explain` from now on."""
    _explain[:] = [function]


def explain(conv: torch.nn.Module, *args: Any, **kwargs: Any) -> str:
    """Names the kernel that each step of a layer's call runs, and why: ``peergraph_pyg.explain``.

    Args:
        conv: a layer of PyG or of ``peergraph_pyg.nn``, or a model of several.
        args, kwargs: of the call, as in ``explain(conv, x, edge_index)``.

    Returns:
        A line for each step. The call is made on a copy; nothing that is kept changes.

    Raises:
        TypeError: `conv` is no module.
        RuntimeError: ``peergraph_pyg`` was not imported, so none of its layers can be there.
    """
    if not _explain:
        raise RuntimeError("explain() asks peergraph_pyg, which was not imported")
    return _explain[0](conv, *args, **kwargs)
