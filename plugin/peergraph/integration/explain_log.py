"""`explain`: the steps of a layer's call and the code that ran each of them."""

from __future__ import annotations

import copy
import logging
from contextvars import ContextVar
from functools import lru_cache, singledispatch
from typing import Any, TypeVar

import torch

from peergraph.integration.swapping import check_module

_logger = logging.getLogger(__name__)

Module = TypeVar("Module", bound=torch.nn.Module)

# One line for each step of a layer; None unless a call is being explained.
_lines: ContextVar[list[str] | None] = ContextVar("peergraph_explain_log", default=None)


def is_explaining() -> bool:
    """Returns whether the current call is made by :func:`explain`, outside of a compiler."""
    return not torch.compiler.is_compiling() and _lines.get() is not None


def note(line: str) -> None:
    """Adds a line to the result of :func:`explain`; does nothing in other calls."""
    if torch.compiler.is_compiling():
        return
    lines = _lines.get()
    if lines is not None:
        lines.append(line)


def note_fallback(of: object, line: str) -> None:
    """Does the same as :func:`note` for a step of a layer that the framework's own code runs, or of
    a loader that takes its slower way, and logs each line once.
    """
    note(line)
    if _logger.isEnabledFor(logging.INFO):
        _log_once(f"{type(of).__name__}: {line}")


@lru_cache(maxsize=1000)
def _log_once(line: str) -> None:
    _logger.info("%s", line)


@singledispatch
def explain(layer: Any, *args: Any, **kwargs: Any) -> str:
    """Names the code that runs each step of a layer's call, or that makes the batches of a loader
    of PyG. Makes the call on a copy of the layer, with gradients where they are enabled, as in
    ``torch.no_grad()`` they are not. Takes no batch of a loader.

    Args:
        layer: a layer, a model of several layers, or a loader.
        args, kwargs: the arguments of the call, as in ``explain(layer, x, edge_index)``; none for a
            loader.

    Returns:
        A line for each step: Peergraph's kernel and the sparse matrix that it runs over, or the
        reason why the framework's own code runs. For a loader, a line: whether the loop, workers
        or a thread make its batches, and why not a thread of C++. The layer, the loader and the
        random state do not change.

    Raises:
        TypeError: `layer` is none of these.
    """
    check_module(layer)
    lines: list[str] = []
    token = _lines.set(lines)
    try:
        gpus = {tensor.device for tensor in layer.parameters() if tensor.is_cuda}
        with torch.random.fork_rng(gpus):
            _copy(layer)(*args, **kwargs)
    finally:
        _lines.reset(token)
    return "\n".join(lines) or f"{type(layer).__name__}: no layer of Peergraph ran"


def _copy(module: Module) -> Module:
    """Returns a deep copy that shares cached tuples: gradients may flow through their tensors."""
    values = [value for part in module.modules() for value in vars(part).values()]
    shared: dict[int, Any] = {id(value): value for value in values if isinstance(value, tuple)}
    return copy.deepcopy(module, shared)
