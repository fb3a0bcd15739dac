"""`accelerate` and `revert`: models with PyG's layers use Peergraph's, and back."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch.fx import GraphModule
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.nn.models.basic_gnn import BasicGNN

from peergraph.integration import layer_classes, swap_layers

from ..compat import set_layer_class
from . import convs, hetero, models, relational_convs, typed_convs
from .hetero_graph import join_relations, part_relations
from .layer import FastLayer
from .trim import disable_trim, enable_trim

_FAST = layer_classes(vars(convs).values(), FastLayer, "pyg_class")
_FAST |= layer_classes(
    vars(relational_convs).values(), relational_convs.RelationalConv, "pyg_class"
)
_FAST |= layer_classes(vars(typed_convs).values(), typed_convs.TypedLayer, "pyg_class")
_FAST |= layer_classes(vars(models).values(), models.FastModel, "pyg_class")
_FAST[hetero.HeteroConv.pyg_class] = hetero.HeteroConv
_PYG = {fast: pyg for pyg, fast in _FAST.items()}

Model = TypeVar("Model", bound=torch.nn.Module)


def accelerate(model: Model) -> Model:
    """Replaces PyG's layers anywhere in `model` by those of ``peergraph_pyg.nn``, in place.

    The modules stay the same objects, with their parameters, buffers, mode and hooks, so optimizers
    and references stay valid; only their class changes. Subclasses that users wrote are not
    changed. PyG's ready-made models (``GraphSAGE``, ``GCN``, ``GAT``, ``GIN``) change their class,
    too: bias, ReLU and dropout between their layers become one pass (:mod:`.models`). Called with
    the numbers of sampled nodes and edges, they no longer compute hidden rows that the next layer
    drops (:mod:`.trim`).

    Args:
        model: any module, or a layer.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is not a module.
    """
    return _swap(model, _FAST)


def revert(model: Model) -> Model:
    """Replaces the layers of ``peergraph_pyg.nn`` anywhere in `model` by PyG's, in place.

    Args:
        model: any module, or a layer.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is not a module.
    """
    return _swap(model, _PYG)


def _swap(model: Model, classes: Any) -> Model:
    swap_layers(model, classes, _set_class)
    for module in list(model.modules()):
        if isinstance(module, BasicGNN):
            (enable_trim if classes is _FAST else disable_trim)(module)
        if isinstance(module, GraphModule):
            (join_relations if classes is _FAST else part_relations)(module)
    return model


def _set_class(module: Any, cls: Any) -> None:
    if isinstance(module, MessagePassing):
        set_layer_class(module, cls)
    else:
        module.__class__ = cls
