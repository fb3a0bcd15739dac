"""`accelerate` and `revert`: replace DGL's layers in a model by Peergraph's, and back."""

from __future__ import annotations

from typing import TypeVar

import torch

from peergraph.integration import layer_classes, swap_layers

from . import convs, hetero, transformer
from .layer import FastLayer

_FAST = layer_classes(vars(convs).values(), FastLayer, "dgl_class")
_FAST |= layer_classes(vars(transformer).values(), FastLayer, "dgl_class")
_FAST[hetero.HeteroGraphConv.dgl_class] = hetero.HeteroGraphConv
_DGL = {fast: slow for slow, fast in _FAST.items()}

Model = TypeVar("Model", bound=torch.nn.Module)


def accelerate(model: Model) -> Model:
    """Replaces DGL's layers anywhere in `model` by those of ``peergraph_dgl.nn``, in place.

    The modules stay the same objects, with their parameters, buffers, mode and hooks, so optimizers
    and references stay valid; only their class changes. Subclasses that users wrote are not
    changed. The new layers run on Peergraph's kernels, on the CPU as well.

    Args:
        model: any module, or a layer.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is no module.
    """
    return swap_layers(model, _FAST)


def revert(model: Model) -> Model:
    """Replaces the layers of ``peergraph_dgl.nn`` anywhere in `model` by DGL's, in place.

    Args:
        model: any module, or a layer.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is no module.
    """
    return swap_layers(model, _DGL)
