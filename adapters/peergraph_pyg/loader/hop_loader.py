"""`HopLoader`: ``NeighborSampler`` of ``torch_geometric.loader`` (deprecated), over a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.loader.neighbor_sampler import EdgeIndex

from peergraph.sampling import NeighborSampler, next_seed

from ..data.edge_index_tensor import EdgeIndexTensor
from ..node_masks import to_ids
from .in_process import drop_workers


class HopLoader(torch_geometric.loader.NeighborSampler):  # type: ignore[misc]
    """``torch_geometric.loader.NeighborSampler`` over a store, on its device.

    PyG's class becomes this one for the ``edge_index`` of shared data. Each hop samples neighbours
    of all nodes so far, with a seed for each batch from torch's default generator.

    Args:
        edge_index: of data that :func:`peergraph_pyg.share` returned; its ends are of one type.
        sizes: neighbours for each node in each hop; -1: all.
        node_idx: [seeds] ids or a mask of all nodes; default: all nodes of the store.
        num_nodes: no effect: the store knows it.
        return_e_id, transform: as PyG's.
        kwargs: of ``torch.utils.data.DataLoader``; ``num_workers`` has no effect for a store on a
            GPU.

    Raises:
        NotImplementedError: sources and destinations are of different types.
        ValueError, TypeError: `sizes` that are no list of ints from -1.
    """

    def __init__(
        self,
        edge_index: EdgeIndexTensor,
        sizes: Sequence[int],
        node_idx: Tensor | None = None,
        num_nodes: int | None = None,
        return_e_id: bool = True,
        transform: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        store, edge_type = edge_index.store, edge_index.edge_type
        if edge_type[0] != edge_type[2]:
            raise NotImplementedError(
                f"NeighborSampler: {edge_type} joins two node types; use NeighborLoader"
            )
        self.edge_index, self.edge_type = edge_index, edge_type
        self.sizes, self.return_e_id, self.transform = sizes, return_e_id, transform
        self.is_sparse_tensor = False
        self.num_nodes = store.num_nodes(edge_type[0])
        if node_idx is not None:
            node_idx = to_ids("node_idx", node_idx, self.num_nodes, edge_type[0])
        self.node_idx = node_idx
        fanouts = {t: list(sizes) if t == edge_type else [0] * len(sizes) for t in store.edge_types}
        self.core = NeighborSampler(store, fanouts, frontier="all", edge_ids=return_e_id)
        # Positions and not ids, of which a list would take memory in each process.
        positions: Any = range(self.num_nodes if node_idx is None else node_idx.numel())
        drop_workers(kwargs, store)
        options = {k: v for k, v in kwargs.items() if k not in ("dataset", "collate_fn")}
        torch.utils.data.DataLoader.__init__(
            self, positions, collate_fn=self._sample_positions, **options
        )

    def _sample_positions(self, positions: Any) -> Any:
        seeds = torch.as_tensor(positions, device="cpu")
        if self.node_idx is not None:
            seeds = self.node_idx[seeds.to(self.node_idx.device)]
        return self.sample(seeds)

    def sample(self, batch: Any) -> Any:
        """Samples around a batch of node ids; the hops are returned from the last to the first."""
        seeds = torch.as_tensor(batch)
        sample = self.core.sample({self.edge_type[0]: seeds}, next_seed())
        row, col = sample.row[self.edge_type], sample.col[self.edge_type]
        ids = None if sample.edge_ids is None else sample.edge_ids[self.edge_type]
        nodes = list(accumulate(sample.num_sampled_nodes[self.edge_type[0]]))
        ends = [0, *accumulate(sample.num_sampled_edges[self.edge_type])]
        hops = []
        for (begin, end), (targets, sources) in zip(pairwise(ends), pairwise(nodes), strict=True):
            edge_index = torch.stack([row[begin:end], col[begin:end]])
            e_id = None if ids is None else ids[begin:end]
            hops.append(EdgeIndex(edge_index, e_id, (sources, targets)))
        out = seeds.numel(), sample.nodes[self.edge_type[0]], hops[::-1]
        if len(hops) == 1:  # as in PyG
            out = (*out[:2], hops[0])
        return out if self.transform is None else self.transform(*out)
