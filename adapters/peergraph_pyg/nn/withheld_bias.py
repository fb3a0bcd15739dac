"""Layers that leave their bias to the step that follows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class WithheldBias:
    """A layer that may leave its bias out, and the bias once it has done so."""

    layer: Any
    bias: Tensor | None = None


_withheld: ContextVar[WithheldBias | None] = ContextVar("peergraph_withheld_bias", default=None)


@contextmanager
def withheld_bias(layer: Any) -> Iterator[WithheldBias]:
    """While the context lasts, `layer` may leave out its bias, which the caller then adds.

    Args:
        layer: or None: no layer may.

    Yields:
        The bias that was left out, or None; known when the layer was called.
    """
    found = WithheldBias(layer)
    token = _withheld.set(found)
    try:
        yield found
    finally:
        _withheld.reset(token)


def bias_to_add(layer: Any, bias: Tensor | None) -> Tensor | None:
    """Returns the bias that a layer adds itself; None if it leaves its bias out.

    Called when nothing can make the layer take another way anymore.
    """
    if torch.compiler.is_compiling():
        return bias
    found = _withheld.get()
    if found is None or found.layer is not layer:
        return bias
    found.bias = bias
    return None
