"""Changes the classes of a model's layers in place, to Peergraph's and back."""

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
        candidates: classes and other objects, such as the values of a module's namespace; all but
            proper subclasses of `base` are ignored.
        base: the base class of all layers of Peergraph.
        attribute: the name of the attribute with the framework's class of such a layer.
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
        model: any module, also a single layer.
        classes: the new class of each old class; subclasses of old classes are not changed.
        set_layer_class: changes the class; called with a module and its new class.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is not a module.
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
