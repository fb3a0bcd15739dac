"""Nodes of a sample, without duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from peergraph.sampling.neighbor.workspace import WorkspacePool

if TYPE_CHECKING:
    from peergraph.store import NodeType, Store

_MAX_ROWS = 2**31 - 1


class UniqueNodes:
    """Appends nodes of a type by first appearance (WholeGraph III-C2).

    Its map of nodes is not pickled; a process that unpickles it makes its own.

    Args:
        store: the graph; :meth:`peergraph.store.Store.memory` lists the maps.
        sampler: who samples, for that list.
    """

    def __init__(self, store: Store, node_type: NodeType, sampler: str) -> None:
        self._store, self._node_type, self._sampler = store, node_type, sampler
        self._workspaces = WorkspacePool([store.num_nodes(node_type)], torch.device(store.device))
        store.register_scratch(f"node maps of a {sampler}", self._workspaces)

    def __reduce__(self) -> tuple[Any, ...]:
        return UniqueNodes, (self._store, self._node_type, self._sampler)

    def append(self, nodes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Returns `nodes` and the new ones of `others`, and for each of `others` the first row of
        that node.

        Args:
            nodes, others: int64 user ids on the store's device; `nodes` may repeat.

        Raises ValueError for more than 2**31 - 1 of both together.
        """
        count, total = nodes.numel(), nodes.numel() + others.numel()
        if total > _MAX_ROWS:
            raise ValueError(f"seeds: too many, a layer has {total} nodes and neighbours")
        both = torch.cat([nodes, others])
        # Counted from the end, so that a maximum keeps the first and -1 is below all.
        positions = torch.arange(total - 1, -1, -1, dtype=torch.int32, device=both.device)
        with self._workspaces.borrow() as workspace:
            (node_map,) = workspace.maps
            node_map.scatter_reduce_(0, both, positions, "amax")
            first = total - 1 - node_map[others].long()
            node_map.index_fill_(0, both, -1)
        is_new = first == torch.arange(count, total, device=both.device)
        rows_of_new = count - 1 + is_new.cumsum(0)
        rows = torch.where(first < count, first, rows_of_new[(first - count).clamp(min=0)])
        return torch.cat([nodes, others[is_new]]), rows
