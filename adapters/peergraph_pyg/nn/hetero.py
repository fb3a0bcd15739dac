"""PyG's HeteroConv: its relations exchange the rows of a type of nodes once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import conv as pyg

from peergraph.fullgraph import PartitionedCsc, PartitionedEdgeIndex, share_rows
from peergraph.integration import is_explaining, note

from ..compat import has_hooks
from . import convs


class HeteroConv(pyg.HeteroConv):  # type: ignore[misc]
    """PyG's HeteroConv; over a partitioned graph, layers of Peergraph share what is exchanged.

    Layers that sum features of sources as they are: those that multiply before they sum, or compute
    scores of edges, exchange rows of their own.
    """

    pyg_class = pyg.HeteroConv

    def forward(self, *args_dict: Any, **kwargs_dict: Any) -> dict[str, Tensor]:
        """As PyG's."""
        structures = self._relations((*args_dict, *kwargs_dict.values()))
        if len(structures) < 2:
            return pyg.HeteroConv.forward(self, *args_dict, **kwargs_dict)  # type: ignore[no-any-return]
        if is_explaining():
            note(f"forward: {len(structures)} relations share the rows that are exchanged")
        with share_rows(structures, list(self.convs.parameters())):
            return pyg.HeteroConv.forward(self, *args_dict, **kwargs_dict)  # type: ignore[no-any-return]

    def _relations(self, arguments: tuple[Any, ...]) -> list[PartitionedCsc]:
        """Returns the relations that may share rows: none where the user's code runs between."""
        if torch.compiler.is_compiling():
            return []
        found = []
        for edge_type, conv in self.convs.items():
            if type(conv).__module__ != convs.__name__ or has_hooks(conv):
                return []
            for values in arguments:
                edges = values.get(edge_type) if isinstance(values, dict) else None
                if isinstance(edges, PartitionedEdgeIndex):
                    structure = edges.structure
                    if type(structure) is PartitionedCsc:
                        found.append(structure)
        return found if found and found[0].source_layout.group.world_size > 1 else []
