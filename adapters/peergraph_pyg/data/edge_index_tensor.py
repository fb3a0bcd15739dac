"""`EdgeIndexTensor`: an ``edge_index`` whose values stay in the store."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from peergraph.store import EdgeType, Store, StoreTensor, implements


class EdgeIndexTensor(StoreTensor):
    """``edge_index`` of one edge type, ``[2, E]`` int64, in the user's order of edges.

    The store keeps it as CSC, so every operation reads it whole (16 bytes an edge).
    """

    edge_type: EdgeType

    def __new__(cls, store: Store, edge_type: EdgeType) -> Self:
        """Args:
        store: the store with the edges.
        edge_type: one of its edge types; ``KeyError`` otherwise.
        """
        tensor = cls._wrap(store, (2, store.num_edges(edge_type)), torch.int64)
        tensor.edge_type = edge_type
        return tensor

    def _arguments(self) -> tuple[Any, ...]:
        return self.store, self.edge_type

    def materialize(self, device: torch.device | None = None) -> Tensor:
        """Returns all edges as a plain tensor on ``device`` (default: the store's).
        Synchronises.
        """
        return self.store.edge_index(self.edge_type).to(self.device if device is None else device)

    def _source(self) -> str:
        return repr(self.edge_type)


@implements(torch.ops.aten.select.int)
def _select(tensor: Any, dim: int, index: int) -> Any:
    if not isinstance(tensor, EdgeIndexTensor) or dim not in (0, -2):
        return NotImplemented
    # Link loaders ask for all sources, then all destinations; only the one asked for is copied.
    return tensor.materialize(torch.device("cpu"))[index].to(tensor.device)
