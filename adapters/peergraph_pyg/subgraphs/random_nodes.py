"""`RandomNodeLoader`: PyG's loader of subgraphs of random parts of the nodes, over a store."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from peergraph.store import NODE

from ..data.store_of import store_of
from ..loader.in_process import drop_workers
from .induced import InducedSubgraphs


class RandomNodeLoader(torch_geometric.loader.RandomNodeLoader):  # type: ignore[misc]
    """``torch_geometric.loader.RandomNodeLoader`` over a store, on its device.

    PyG's class becomes this one for shared data. Batches are those of unshared data; only the edges
    of a batch are read.

    Args:
        data: ``Data`` or ``HeteroData`` returned by :func:`peergraph_pyg.share`.
        num_parts: the number of batches of an epoch.
        kwargs: of ``torch.utils.data.DataLoader``; ``num_workers`` has no effect for a store on a
            GPU.
    """

    def __init__(self, data: Data | HeteroData, num_parts: int, **kwargs: Any) -> None:
        self.data = data
        self.num_parts = num_parts
        self._subgraphs = InducedSubgraphs(data)
        self.num_nodes = data.num_nodes
        self.node_dict: dict[str, tuple[int, int]] = {}
        """The range of each type's nodes in the numbering of all nodes."""
        begin = 0
        for node_type, count in getattr(data, "num_nodes_dict", {NODE: self.num_nodes}).items():
            self.node_dict[node_type] = (begin, begin + count)
            begin += count
        drop_workers(kwargs, store_of(data))
        nodes: Any = range(self.num_nodes)
        torch.utils.data.DataLoader.__init__(
            self,
            nodes,
            batch_size=math.ceil(self.num_nodes / num_parts),
            collate_fn=self.collate_fn,
            **kwargs,
        )

    def collate_fn(self, index: Any) -> Data | HeteroData:
        """Returns the subgraph of a batch of nodes."""
        ids: Tensor = torch.as_tensor(index, device="cpu")
        return self._subgraphs(
            {
                node_type: ids[(ids >= begin) & (ids < end)] - begin
                for node_type, (begin, end) in self.node_dict.items()
            }
        )
