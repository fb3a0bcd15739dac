"""Results of layers of several relations, of which those that can run as one operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .joined_layers import Call, EdgeType, JoinedLayers
from .typed_attention import joined_attention
from .typed_sums import joined_sums


def joined_totals(
    layers: Mapping[EdgeType, Any], call: Call, scales: Mapping[str, float]
) -> dict[str, Tensor] | None:
    """Returns the sums of the layers' results by destination type; None if no layers join.

    Args:
        layers: by edge type; those without edges in the call do not run.
        call: features, edges and weights of edges.
        scales: factors of the sums by destination type.
    """
    joined = _joined(layers, call)
    if not joined:
        return None
    totals: dict[str, Tensor] = {}
    for each in joined:
        _add(totals, each.sums(scales))
    is_joined = {key for each in joined for key in each.layers}
    rest: dict[str, Tensor] = {}
    for edge_type, layer in layers.items():
        if edge_type in call.edges and edge_type not in is_joined:
            _add(rest, {edge_type[2]: run_alone(edge_type, layer, call)})
    _add(totals, {t: rows if scales[t] == 1 else rows * scales[t] for t, rows in rest.items()})
    return totals


def joined_results(layers: Mapping[EdgeType, Any], call: Call) -> dict[EdgeType, Tensor] | None:
    """Returns the result of each layer that has edges; None if no layers join.

    Args:
        layers, call: as for :func:`joined_totals`.
    """
    joined = _joined(layers, call)
    if not joined:
        return None
    results = {key: rows for each in joined for key, rows in each.apart().items()}
    return {
        key: results[key] if key in results else run_alone(key, layer, call)
        for key, layer in layers.items()
        if key in call.edges
    }


def _joined(layers: Mapping[EdgeType, Any], call: Call) -> list[JoinedLayers]:
    unweighted = {key: edges for key, edges in call.edges.items() if key not in call.edge_weights}
    joined = joined_sums(layers.items(), call)
    return joined + joined_attention(layers.items(), call.x, unweighted)


def run_alone(edge_type: EdgeType, layer: Any, call: Call) -> Tensor:
    """Returns the result of one layer, called as PyG's HeteroConv calls it."""
    source, _, target = edge_type
    x = call.x[source] if source == target else (call.x.get(source), call.x.get(target))
    named = {}
    if edge_type in call.edge_weights:
        named["edge_weight"] = call.edge_weights[edge_type]
    result: Tensor = layer(x, call.edges[edge_type], **named)
    return result


def _add(totals: dict[str, Tensor], results: Mapping[str, Tensor]) -> None:
    """Adds up the results of layers that end in the same node type."""
    for node_type, rows in results.items():
        totals[node_type] = totals[node_type] + rows if node_type in totals else rows
