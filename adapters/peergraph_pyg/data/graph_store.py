"""`GraphStore`: the structure of a store as PyG's graph store."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.data
from torch import Tensor
from torch_geometric.data import EdgeAttr
from torch_geometric.data.graph_store import EdgeLayout

from peergraph.store import EDGE, EdgeType, Store


class GraphStore(torch_geometric.data.GraphStore):  # type: ignore[misc]
    """The structure of a store as a PyG graph store, whole and on the CPU.

    It lists each edge type once, as COO in the order of edge ids, and returns COO, CSR and CSC of
    it, with edges of a row or column in that order. The edge type of a homogeneous graph is
    ``None``. Peergraph's sampler reads the store instead; this object serves other code.

    A store's structure is fixed when it is built. ``remove_edge_index`` removes an edge type from
    this object, so that loaders over it sample without it, and does not change the store;
    ``put_edge_index`` with the store's edges adds it again. Putting other edges raises
    ``NotImplementedError``.

    Args:
        store: the store.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self._removed: set[EdgeType] = set()

    @property
    def edge_types(self) -> list[EdgeType]:
        """The store's edge types without those that were removed here."""
        return [key for key in self.store.edge_types if key not in self._removed]

    def _size(self, edge_type: EdgeType) -> tuple[int, int]:
        return self.store.num_nodes(edge_type[0]), self.store.num_nodes(edge_type[2])

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Returns a COO attribute for each edge type, with its number of sources and
        destinations.
        """
        homogeneous = self.store.is_homogeneous
        return [
            self._edge_attr_cls(None if homogeneous else key, EdgeLayout.COO, size=self._size(key))
            for key in self.edge_types
        ]

    def _edge_type(self, edge_attr: EdgeAttr) -> EdgeType | None:
        if edge_attr.edge_type is None and self.store.is_homogeneous:
            return EDGE
        edge_type: EdgeType | None = edge_attr.edge_type
        return edge_type

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        edge_type = self._edge_type(edge_attr)
        return None if edge_type in self._removed else self._stored(edge_type, edge_attr)

    def _stored(
        self, edge_type: EdgeType | None, edge_attr: EdgeAttr
    ) -> tuple[Tensor, Tensor] | None:
        if edge_type is None or edge_type not in self.store.edge_types:
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
        edge_type = self._edge_type(edge_attr)
        stored = self._stored(edge_type, edge_attr)
        if stored is None or not all(
            torch.equal(own, torch.as_tensor(other).to(own))
            for own, other in zip(stored, edge_index, strict=True)
        ):
            raise NotImplementedError(
                f"put_edge_index of {edge_type}: the structure of a store is fixed when it is "
                "built, and these are not the edges that it has"
            )
        self._removed -= {edge_type}
        return True

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        edge_type = self._edge_type(edge_attr)
        if edge_type is None or edge_type not in self.edge_types:
            return False
        self._removed.add(edge_type)
        return True


def _offsets(ids: Tensor, count: int) -> Tensor:
    """Returns offsets ``[count + 1]`` of the groups of equal ids among sorted ids."""
    offsets = torch.zeros(count + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(torch.bincount(ids, minlength=count), 0, out=offsets[1:])
    return offsets
