"""`ShaDowKHopSampler`: PyG's loader of a separate subgraph for each seed, over a store."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.loader import utils as loader_utils

from peergraph.sampling import NeighborSampler, next_seed
from peergraph.store import EDGE, NODE

from ..data.store_of import store_of
from ..loader.filter_batch import filter_data
from ..loader.in_process import drop_workers
from ..node_masks import to_ids


class ShaDowKHopSampler(torch_geometric.loader.ShaDowKHopSampler):  # type: ignore[misc]
    """``torch_geometric.loader.ShaDowKHopSampler`` over a store, on its device.

    PyG's class becomes this one for shared data. The core draws a disjoint sample and returns all
    edges within each subgraph, with a seed for each batch from torch's default generator. As PyG's,
    a subgraph has its nodes in the order of their ids; edges are sorted by source, then by target.

    Args:
        data: ``Data`` returned by :func:`peergraph_pyg.share`.
        depth: the number of hops.
        num_neighbors: neighbours for each node in each hop; -1: all.
        node_idx: [seeds] ids or a mask of all nodes; default: all nodes.
        replace: draw with replacement.
        kwargs: of ``torch.utils.data.DataLoader``; ``num_workers`` has no effect for a store on a
            GPU.

    Raises:
        NotImplementedError: the data has node types.
        ValueError: a number below -1.
    """

    def __init__(
        self,
        data: Any,
        depth: int,
        num_neighbors: int,
        node_idx: Tensor | None = None,
        replace: bool = False,
        **kwargs: Any,
    ) -> None:
        if not isinstance(data, Data):
            raise NotImplementedError(
                "ShaDowKHopSampler takes Data without types, as in PyG; NeighborLoader with "
                "disjoint=True and subgraph_type='induced' samples graphs with types alike"
            )
        store = store_of(data)
        self.data = data
        self.depth, self.num_neighbors, self.replace = depth, num_neighbors, replace
        self.is_sparse_tensor = "edge_index" not in data
        self.core = NeighborSampler(
            store, [num_neighbors] * depth, replace=replace, disjoint=True, subgraph="induced"
        )
        if node_idx is not None:
            node_idx = to_ids("node_idx", node_idx, store.num_nodes())
        self.node_idx = node_idx
        # Positions and not ids, of which a list would take memory in each process.
        positions: Any = range(store.num_nodes() if node_idx is None else node_idx.numel())
        drop_workers(kwargs, store)
        torch.utils.data.DataLoader.__init__(self, positions, collate_fn=self.__collate__, **kwargs)

    def __collate__(self, positions: Any) -> Batch:
        """Samples the subgraphs of a batch of positions in the list of seeds."""
        seeds = torch.as_tensor(positions, device="cpu")
        if self.node_idx is not None:
            seeds = self.node_idx[seeds.to(self.node_idx.device)]
        sample = self.core.sample(seeds, next_seed())
        assert sample.batch is not None
        assert sample.edge_ids is not None
        # The sample is in the order of hops; PyG's batches are in that of subgraphs and node ids.
        tree, nodes = sample.batch[NODE], sample.nodes[NODE]
        order = (tree * self.core.store.num_nodes() + nodes).argsort()
        place = torch.empty_like(order)
        place[order] = torch.arange(order.numel(), device=order.device)
        row, col = place[sample.row[EDGE]], place[sample.col[EDGE]]
        edge_order = (row * order.numel() + col).argsort(stable=True)
        subgraph = filter_data(
            loader_utils.filter_data,
            self.data,
            nodes[order],
            row[edge_order],
            col[edge_order],
            sample.edge_ids[EDGE][edge_order],
        )
        batch = tree[order]
        ptr = torch.searchsorted(batch, torch.arange(seeds.numel() + 1, device=batch.device))
        roots = place[: seeds.numel()]
        result = Batch(batch=batch, ptr=ptr, root_n_id=roots)
        for name, value in subgraph.items():
            if name not in ("num_nodes", "batch", "ptr"):
                is_label = name == "y" and self.data.is_node_attr("y")
                result[name] = value[roots.to(value.device)] if is_label else value
        return result
