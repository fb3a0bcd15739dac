"""PyG's ``GraphStore`` over a store."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import EdgeAttr, GraphStore
from torch_geometric.data.graph_store import EdgeLayout

from peergraph.store import EDGE, EdgeType, Store


class PeergraphGraphStore(GraphStore):  # type: ignore[misc]
    """The structure of a store as a PyG graph store, whole and on the CPU.

    It lists each edge type once, as COO in the order of the edge ids, and gives COO, CSR and CSC
    of it on request, in that order within a row or column. The edge type of a homogeneous graph is
    ``None``. Peergraph's sampler does not go through here: this is for other code that asks.

    A store's structure is fixed when it is built: putting or removing edges raises
    ``NotImplementedError``.

    Args:
        store: the store.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def _size(self, edge_type: EdgeType) -> tuple[int, int]:
        return self.store.num_nodes(edge_type[0]), self.store.num_nodes(edge_type[2])

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """One COO attribute per edge type, with its number of sources and destinations."""
        homogeneous = self.store.is_homogeneous
        return [
            self._edge_attr_cls(None if homogeneous else key, EdgeLayout.COO, size=self._size(key))
            for key in self.store.edge_types
        ]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        edge_type = edge_attr.edge_type
        if edge_type is None and self.store.is_homogeneous:
            edge_type = EDGE
        if edge_type not in self.store.edge_types:
            return None
        size = self._size(edge_type)
        if edge_attr.size is not None and tuple(edge_attr.size) != size:
            return None
        row, col = self.store.edge_index(edge_type)
        if edge_attr.layout is EdgeLayout.CSR:
            order = row.argsort(stable=True)
            return _offsets(row, size[0]), col[order]
        if edge_attr.layout is EdgeLayout.CSC:
            return row[col.argsort(stable=True)], _offsets(col, size[1])
        if edge_attr.is_sorted:
            order = col.argsort(stable=True)
            return row[order], col[order]
        return row, col

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        raise NotImplementedError(f"put_edge_index: {_FIXED}")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        raise NotImplementedError(f"remove_edge_index: {_FIXED}")


_FIXED = "the structure of a store is fixed when it is built"


def _offsets(ids: Tensor, count: int) -> Tensor:
    """Where each of ``count`` groups of sorted ids begins, ``[count + 1]``."""
    offsets = torch.zeros(count + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(ids, minlength=count), 0, out=offsets[1:])
    return offsets
