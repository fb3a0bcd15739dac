"""Fast layers in models that were built of PyG's, and back."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.nn.models.basic_gnn import BasicGNN

from . import attention_convs, convs
from .layer import FastLayer, become
from .notes import notes
from .trim import narrow, widen

_FAST: dict[type[MessagePassing], type[FastLayer]] = {
    layer.pyg_class: layer
    for layer in (*vars(convs).values(), *vars(attention_convs).values())
    if isinstance(layer, type) and issubclass(layer, FastLayer) and layer is not FastLayer
}
_PYG = {fast: pyg for pyg, fast in _FAST.items()}

Model = TypeVar("Model", bound=torch.nn.Module)


def accelerate(model: Model) -> Model:
    """Makes PyG's layers anywhere in `model` those of ``peergraph_pyg.nn``, in place.

    The modules stay the same objects, with their parameters, buffers, mode and hooks, so optimizers
    and references go on working; only their class changes. Subclasses that users wrote are left
    alone. PyG's ready-made models (``GraphSAGE``, ``GAT``, ``GIN``), given the numbers of sampled
    nodes and edges, no longer compute hidden rows that the next layer drops (:mod:`.trim`).

    Args:
        model: any module; a layer itself too.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is no module.
    """
    return _swap(model, _FAST)


def revert(model: Model) -> Model:
    """Makes the layers of ``peergraph_pyg.nn`` anywhere in `model` PyG's, in place.

    Args:
        model: any module; a layer itself too.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is no module.
    """
    return _swap(model, _PYG)


def explain(conv: torch.nn.Module, *args: Any, **kwargs: Any) -> str:
    """Says which path a call takes, by making it on a copy of the layer.

    Args:
        conv: a layer, or a model of several.
        args, kwargs: of the call, as in ``explain(conv, x, edge_index)``.

    Returns:
        A line for each step: Peergraph's kernel and the structure it runs over, or why PyG's code
        does it. Nothing that is kept changes: neither the layer nor the random state.

    Raises:
        TypeError: `conv` is no module.
    """
    _check(conv)
    lines: list[str] = []
    token = notes.set(lines)
    try:
        gpus = {tensor.device for tensor in conv.parameters() if tensor.is_cuda}
        with torch.random.fork_rng(gpus), torch.no_grad():
            _copy(conv)(*args, **kwargs)
    finally:
        notes.reset(token)
    return "\n".join(lines) or f"{type(conv).__name__}: PyG, no layer of peergraph_pyg.nn ran"


def _copy(model: Model) -> Model:
    """A deep copy, but for cached tuples: gradients may flow through their tensors."""
    values = [value for module in model.modules() for value in vars(module).values()]
    shared: dict[int, Any] = {id(value): value for value in values if isinstance(value, tuple)}
    return copy.deepcopy(model, shared)


def _swap(model: Model, classes: Any) -> Model:
    _check(model)
    for module in model.modules():
        target = classes.get(type(module))
        if target is not None:
            become(module, target)
    for module in model.modules():
        if isinstance(module, BasicGNN):
            (narrow if classes is _FAST else widen)(module)
    return model


def _check(model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
