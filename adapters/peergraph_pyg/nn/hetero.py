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
from .joined_layers import JoinedLayers
from .typed_attention import joined_attention


class HeteroConv(pyg.HeteroConv):  # type: ignore[misc]
    """PyG's HeteroConv. GAT layers of all relations run as one operation.

    Over a partitioned graph, layers of Peergraph share what is exchanged, if they sum features of
    sources as they are: those that multiply before they sum, or compute scores of edges, exchange
    rows of their own.
    """

    pyg_class = pyg.HeteroConv

    def forward(self, *args_dict: Any, **kwargs_dict: Any) -> dict[str, Tensor]:
        """As PyG's."""
        if _may_join(self, args_dict, kwargs_dict):
            x_dict, edge_index_dict = args_dict
            x_dict = {key: whole_rows(x) for key, x in x_dict.items()}
            joined = joined_attention(self.convs.items(), x_dict, edge_index_dict)
            if joined:
                return self._with_joined(joined, x_dict, edge_index_dict)
        structures = self._relations((*args_dict, *kwargs_dict.values()))
        if len(structures) < 2:
            return pyg.HeteroConv.forward(self, *args_dict, **kwargs_dict)  # type: ignore[no-any-return]
        if is_explaining():
            note(f"forward: {len(structures)} relations share the rows that are exchanged")
        with share_rows(structures, list(self.convs.parameters())):
            return pyg.HeteroConv.forward(self, *args_dict, **kwargs_dict)  # type: ignore[no-any-return]

    def _with_joined(
        self, joined: Sequence[JoinedLayers], x_dict: Any, edge_index_dict: Any
    ) -> dict[str, Tensor]:
        """Returns the sums or means of the joined relations and of all others."""
        edge_types: list[Any] = [key for key, _ in self.convs.items() if key in edge_index_dict]
        counts = Counter(key[2] for key in edge_types)
        is_joined = {key for layers in joined for key in layers.layers}
        others = {key: value for key, value in edge_index_dict.items() if key not in is_joined}
        scales = {t: 1.0 / count if self.aggr == "mean" else 1.0 for t, count in counts.items()}
        totals: dict[str, Tensor] = {}
        for layers in joined:
            _add(totals, layers.sums(scales))
        if others:
            rest: dict[str, Tensor] = pyg.HeteroConv.forward(self, x_dict, others)
            if self.aggr == "mean":
                of_rest = Counter(key[2] for key in edge_types if key not in is_joined)
                rest = {t: rows * (of_rest[t] * scales[t]) for t, rows in rest.items()}
            _add(totals, rest)
        return {t: totals[t] for t in counts if t in totals}  # in PyG's order

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


def _may_join(layer: HeteroConv, args_dict: tuple[Any, ...], kwargs_dict: dict[str, Any]) -> bool:
    """Returns whether the call passes features and edges alone, and nothing looks at its steps."""
    if torch.compiler.is_compiling() or compat.is_traced():
        return False
    plain = len(args_dict) == 2 and not kwargs_dict and layer.aggr in ("sum", "mean")
    return plain and all(isinstance(values, Mapping) for values in args_dict)


def _add(totals: dict[str, Tensor], results: Mapping[str, Tensor]) -> None:
    """Adds results by node type."""
    for node_type, rows in results.items():
        totals[node_type] = totals[node_type] + rows if node_type in totals else rows
