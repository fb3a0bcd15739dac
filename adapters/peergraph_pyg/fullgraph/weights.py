"""Matrices with values (``adj_t``) on partitioned graphs: their values are weights of edges."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch_geometric.nn.conv as convs
from torch_geometric.nn.conv import MessagePassing

from .. import compat
from ..nn.partitioned import is_weighted, split_weights

Original = Callable[..., Any]


def install() -> None:
    """Makes PyG's layers take the values of a partitioned matrix, or refuse them."""
    for layer in vars(convs).values():
        forward = vars(layer).get("forward") if inspect.isclass(layer) else None
        if forward is None or not issubclass(layer, MessagePassing):
            continue
        names = list(inspect.signature(forward).parameters)
        if "edge_index" in names and "edge_weight" in names:
            compat.full_graph_patches.replace(layer, "forward", _Forward(names))
    compat.full_graph_patches.replace(MessagePassing, compat.CHECK_INPUT, _check_input)


class _Forward:
    """The ``forward`` of a layer that takes weights of edges.

    Args:
        names: its parameters, `self` first.
    """

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def __call__(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        if not any(map(is_weighted, (*args, *kwargs.values()))):
            return original(*args, **kwargs)
        arguments = {**dict(zip(self._names, args, strict=False)), **kwargs}
        arguments["edge_index"], arguments["edge_weight"] = split_weights(
            arguments["edge_index"], arguments.get("edge_weight")
        )
        return original(arguments.pop(self._names[0]), **arguments)


def _check_input(original: Original, layer: Any, edge_index: Any, size: Any) -> Any:
    if is_weighted(edge_index):
        raise NotImplementedError(
            f"{type(layer).__name__} on a partitioned matrix with values, which are no input of "
            "its messages: pass peergraph.fullgraph.PartitionedEdgeIndex(adj_t.structure), and "
            "adj_t.edge_weight as weights or features of edges"
        )
    return original(layer, edge_index, size)


def without_weights(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns a replacement of a function of PyG that refuses matrices with values."""

    def run(original: Original, *args: Any, **kwargs: Any) -> Any:
        if any(map(is_weighted, (*args, *kwargs.values()))):
            raise NotImplementedError(
                f"torch_geometric's {name} of a partitioned matrix with values: pass "
                "peergraph.fullgraph.PartitionedEdgeIndex(adj_t.structure) and adj_t.edge_weight"
            )
        return function(original, *args, **kwargs)

    return run
