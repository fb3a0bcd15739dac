"""PyG's HeteroConv: its relations run as one operation, or exchange rows of a type once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import conv as pyg

from peergraph.fullgraph import PartitionedCsc, PartitionedEdgeIndex, share_rows
from peergraph.integration import is_explaining, note

from .. import compat
from ..data.tailed_rows import whole_rows
from . import convs
from .joined_layers import Call, EdgeType
from .linear_maps import as_in_float32
from .relation_sums import joined_results, joined_totals


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
            layers = {key: conv for key, conv in self.convs.items() if key in call.edges}
            results = self._joined(layers, call)
            if results is not None:
                return results
        structures = self._relations((*args_dict, *kwargs_dict.values()))
        if len(structures) < 2:
            return pyg.HeteroConv.forward(self, *args_dict, **kwargs_dict)  # type: ignore[no-any-return]
        if is_explaining():
            note(f"forward: {len(structures)} relations share the rows that are exchanged")
        with share_rows(structures, list(self.convs.parameters())):
            return pyg.HeteroConv.forward(self, *args_dict, **kwargs_dict)  # type: ignore[no-any-return]

    def _joined(self, layers: dict[EdgeType, Any], call: Call) -> dict[str, Tensor] | None:
        """Returns the results by node type, in PyG's order; None if no layers join."""
        counts = Counter(key[2] for key in layers)
        if self.aggr in ("sum", "mean"):
            scales = {t: 1.0 / count if self.aggr == "mean" else 1.0 for t, count in counts.items()}
            totals = joined_totals(layers, call, scales)
            if totals is None:
                return None
            wide = {t for t, count in counts.items() if count > 1 and self.aggr == "sum"}
            return {t: as_in_float32(totals[t]) if t in wide else totals[t] for t in counts}
        results = joined_results(layers, call)
        if results is None:
            return None
        by_type: dict[str, list[Tensor]] = {t: [] for t in counts}
        for key, rows in results.items():
            by_type[key[2]].append(rows)
        return {t: compat.group_relations(rows, self.aggr) for t, rows in by_type.items()}

    def _relations(self, arguments: tuple[Any, ...]) -> list[PartitionedCsc]:
        """Returns the relations that may share rows: none where the user's code runs between."""
        if torch.compiler.is_compiling():
            return []
        relations = []
        for edge_type, conv in self.convs.items():
            if type(conv).__module__ != convs.__name__ or compat.has_hooks(conv):
                return []
            for values in arguments:
                edges = values.get(edge_type) if isinstance(values, dict) else None
                if isinstance(edges, PartitionedEdgeIndex):
                    structure = edges.structure
                    if type(structure) is PartitionedCsc:
                        relations.append(structure)
        return relations if relations and relations[0].source_layout.group.world_size > 1 else []


def _joined_call(
    layer: HeteroConv, args_dict: tuple[Any, ...], kwargs_dict: dict[str, Any]
) -> Call | None:
    """Returns the arguments if they are features, edges and weights of edges, and nothing looks at
    the steps of the layer; else None.
    """
    if torch.compiler.is_compiling() or compat.is_traced():
        return None
    if len(args_dict) != 2 or not {*kwargs_dict} <= {"edge_weight_dict"}:
        others = ", ".join(kwargs_dict) or f"{len(args_dict)} arguments"
        note(f"forward: relation by relation, there is {others}")
        return None
    x_dict, edge_index_dict = args_dict
    weights = kwargs_dict.get("edge_weight_dict", {})
    if not all(isinstance(values, Mapping) for values in (*args_dict, weights)):
        note("forward: relation by relation, an argument is no dict")
        return None
    if weights:
        edge_types = {key for key, _ in layer.convs.items()}
        if any(key not in edge_types or key not in edge_index_dict for key in weights):
            note("forward: relation by relation, there are weights of other relations")
            return None
    return Call({key: whole_rows(x) for key, x in x_dict.items()}, edge_index_dict, weights)
