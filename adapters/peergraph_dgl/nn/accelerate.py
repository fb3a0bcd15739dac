"""Fast layers in models that were built of DGL's, and back."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from . import convs
from .convs import FastLayer

_FAST: dict[type[torch.nn.Module], type[FastLayer]] = {
    layer.dgl_class: layer
    for layer in vars(convs).values()
    if isinstance(layer, type) and issubclass(layer, FastLayer) and layer is not FastLayer
}
_DGL = {fast: slow for slow, fast in _FAST.items()}

Model = TypeVar("Model", bound=torch.nn.Module)


def accelerate(model: Model) -> Model:
    """Makes DGL's layers anywhere in `model` those of ``peergraph_dgl.nn``, in place.

    The modules stay the same objects, with their parameters, buffers, mode and hooks, so optimizers
    and references go on working; only their class changes. Subclasses that users wrote are left
    alone. On the CPU, too, such layers run on Peergraph's kernels.

    Args:
        model: any module; a layer itself too.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is no module.
    """
    return _swap(model, _FAST)


def revert(model: Model) -> Model:
    """Makes the layers of ``peergraph_dgl.nn`` anywhere in `model` DGL's, in place.

    Args:
        model: any module; a layer itself too.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is no module.
    """
    return _swap(model, _DGL)


def _swap(model: Model, classes: Any) -> Model:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
    for module in model.modules():
        target = classes.get(type(module))
        if target is not None:
            module.__class__ = target
    return model
