"""PyG's HeteroConv: its relations run as one operation, or exchange rows of a type once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import conv as pyg

from peergraph.fullgraph import PartitionedCsc, PartitionedEdgeIndex, share_rows
from peergraph.integration import is_explaining, note

from .. import compat
from ..data.tailed_rows import whole_rows
from . import convs
from .joined_layers import Call, EdgeType, JoinedLayers
from .typed_attention import joined_attention
from .typed_sums import joined_sums


class HeteroConv(pyg.HeteroConv):  # type: ignore[misc]
    """PyG's HeteroConv. GAT layers, SAGE and Graph layers of all relations run as one operation.

    Over a partitioned graph, layers of Peergraph share what is exchanged, if they sum features of
    sources as they are: those that multiply before they sum, or compute scores of edges, exchange
    rows of their own.
    """

    pyg_class = pyg.HeteroConv

    def forward(self, *args_dict: Any, **kwargs_dict: Any) -> dict[str, Tensor]:
        """As PyG's."""
        call = _joined_call(self, args_dict, kwargs_dict)
        if call is not None:
            relations = self.convs.items()
            unweighted = {k: e for k, e in call.edges.items() if k not in call.edge_weights}
            joined = joined_sums(relations, call)
            joined += joined_attention(relations, call.x, unweighted)
            if joined:
                adds = self.aggr in ("sum", "mean")
                return self._added(joined, call) if adds else self._apart(joined, call)
        structures = self._relations((*args_dict, *kwargs_dict.values()))
        if len(structures) < 2:
            return pyg.HeteroConv.forward(self, *args_dict, **kwargs_dict)  # type: ignore[no-any-return]
        if is_explaining():
            note(f"forward: {len(structures)} relations share the rows that are exchanged")
        with share_rows(structures, list(self.convs.parameters())):
            return pyg.HeteroConv.forward(self, *args_dict, **kwargs_dict)  # type: ignore[no-any-return]

    def _added(self, joined: Sequence[JoinedLayers], call: Call) -> dict[str, Tensor]:
        """Returns the sums or means of the results of joined layers and of all others."""
        edge_types: list[EdgeType] = [key for key, _ in self.convs.items() if key in call.edges]
        counts = Counter(key[2] for key in edge_types)
        is_joined = {key for layers in joined for key in layers.layers}
        scales = {t: 1.0 / count if self.aggr == "mean" else 1.0 for t, count in counts.items()}
        totals: dict[str, Tensor] = {}
        for layers in joined:
            _add(totals, layers.sums(scales))
        others = call.without(is_joined)
        if others.edges:
            rest = self._by_pyg(others)
            if self.aggr == "mean":
                of_rest = Counter(key[2] for key in edge_types if key not in is_joined)
                rest = {t: rows * (of_rest[t] * scales[t]) for t, rows in rest.items()}
            _add(totals, rest)
        return {t: totals[t] for t in counts if t in totals}  # in PyG's order

    def _apart(self, joined: Sequence[JoinedLayers], call: Call) -> dict[str, Tensor]:
        """Returns the results of joined layers and of all others, grouped as PyG does."""
        results = {key: rows for layers in joined for key, rows in layers.apart().items()}
        by_type: dict[str, list[Tensor]] = {}
        for key, conv in self.convs.items():
            if key in results:
                by_type.setdefault(key[2], []).append(results[key])
            elif key in call.edges:
                weights = [call.edge_weights[key]] if key in call.edge_weights else []
                x = call.x.get(key[0]), call.x.get(key[2])
                rows = conv(x[0] if key[0] == key[2] else x, call.edges[key], *weights)
                by_type.setdefault(key[2], []).append(rows)
        return {t: compat.group_relations(rows, self.aggr) for t, rows in by_type.items()}

    def _by_pyg(self, call: Call) -> dict[str, Tensor]:
        """Returns the results of PyG's loop over relations."""
        weights = {"edge_weight_dict": call.edge_weights} if call.edge_weights else {}
        results: dict[str, Tensor] = pyg.HeteroConv.forward(self, call.x, call.edges, **weights)
        return results

    def _relations(self, arguments: tuple[Any, ...]) -> list[PartitionedCsc]:
        """Returns the relations that may share rows: none where the user's code runs between."""
        if torch.compiler.is_compiling():
            return []
        found = []
        for edge_type, conv in self.convs.items():
            if type(conv).__module__ != convs.__name__ or compat.has_hooks(conv):
                return []
            for values in arguments:
                edges = values.get(edge_type) if isinstance(values, dict) else None
                if isinstance(edges, PartitionedEdgeIndex):
                    structure = edges.structure
                    if type(structure) is PartitionedCsc:
                        found.append(structure)
        return found if found and found[0].source_layout.group.world_size > 1 else []


def _joined_call(
    layer: HeteroConv, args_dict: tuple[Any, ...], kwargs_dict: dict[str, Any]
) -> Call | None:
    """Returns the arguments if they are features, edges and weights of edges, and nothing looks at
    the steps of the layer; else None.
    """
    if torch.compiler.is_compiling() or compat.is_traced() or len(args_dict) != 2:
        return None
    if not {*kwargs_dict} <= {"edge_weight_dict"}:
        note(f"forward: relation by relation, there is {', '.join(kwargs_dict)}")
        return None
    x_dict, edge_index_dict = args_dict
    weights = kwargs_dict.get("edge_weight_dict", {})
    if not all(isinstance(values, Mapping) for values in (*args_dict, weights)):
        return None
    edge_types = {key for key, _ in layer.convs.items()}
    if any(key not in edge_types or key not in edge_index_dict for key in weights):
        return None
    return Call({key: whole_rows(x) for key, x in x_dict.items()}, edge_index_dict, weights)


def _add(totals: dict[str, Tensor], results: Mapping[str, Tensor]) -> None:
    """Adds results by node type."""
    for node_type, rows in results.items():
        totals[node_type] = totals[node_type] + rows if node_type in totals else rows
