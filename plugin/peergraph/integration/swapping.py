"""Layers of a model change their class in place, to Peergraph's and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch

Model = TypeVar("Model", bound=torch.nn.Module)
Classes = dict[type[torch.nn.Module], type[torch.nn.Module]]


def layer_classes(
    candidates: Iterable[Any], base: type[torch.nn.Module], attribute: str
) -> Classes:
    """Pairs the framework's layer classes with Peergraph's subclasses of them.

    Args:
        candidates: such as the values of a module's namespace; anything but a proper subclass of
            `base` is passed over.
        base: what all layers of Peergraph inherit.
        attribute: of such a layer, its class in the framework.
    """
    return {
        getattr(layer, attribute): layer
        for layer in candidates
        if isinstance(layer, type) and issubclass(layer, base) and layer is not base
    }


def set_class(module: torch.nn.Module, cls: type[torch.nn.Module]) -> None:
    """Assigns ``__class__``."""
    module.__class__ = cls


def swap_layers(
    model: Model,
    classes: Mapping[type[torch.nn.Module], type[torch.nn.Module]],
    set_layer_class: Callable[[Any, Any], None] = set_class,
) -> Model:
    """Changes the class of each module of a model that has a counterpart, in place.

    The modules stay the same objects, with their parameters, buffers, mode and hooks.

    Args:
        model: any module; a layer itself too.
        classes: the new class by the old one; subclasses of the old one are left alone.
        set_layer_class: called with a module and its new class.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is no module.
    """
    check_module(model)
    for module in model.modules():
        target = classes.get(type(module))
        if target is not None:
            set_layer_class(module, target)
    return model


def check_module(model: object) -> None:
    """Raises ``TypeError`` unless `model` is a module of torch."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
