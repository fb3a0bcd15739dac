"""Layers that leave their bias to the step that follows them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor


class WithheldBias:
    """A context in which a layer may leave out its bias, which the caller then adds.

    Args:
        layer: or None: no layer may.

    Attributes:
        bias: what was left out, or None; known when the layer was called.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.bias: Tensor | None = None

    def __enter__(self) -> WithheldBias:
        self._token = _withheld.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _withheld.reset(self._token)


_withheld: ContextVar[WithheldBias | None] = ContextVar("peergraph_withheld_bias", default=None)


def bias_to_add(layer: Any, bias: Tensor | None) -> Tensor | None:
    """Returns the bias that a layer adds itself; None if it leaves its bias out.

    Called when nothing can make the layer take another way anymore.
    """
    if torch.compiler.is_compiling():
        return bias
    withheld = _withheld.get()
    if withheld is None or withheld.layer is not layer:
        return bias
    withheld.bias = bias
    return None
