"""`PPRLoader`: a node loader whose neighbours are those with the largest personalised PageRank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch_geometric.sampler
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import SamplerOutput

from peergraph.sampling import PprSampler
from peergraph.store import EDGE

from ..data.store_of import store_of


class PPRSampler(torch_geometric.sampler.BaseSampler):  # type: ignore[misc]
    """Takes the nodes with the largest personalised PageRank as neighbours of each seed, by
    :class:`peergraph.sampling.PprSampler`; for ``NodeLoader``.

    The sample has one edge from each such node to the seed. It has no ids, as it may be no edge of
    the graph, but a weight: ``edge_weight`` of the sampler's output, float32 ``[edges]``.

    Args:
        data: of one node type and one edge type, returned by :func:`peergraph_pyg.share`, or the
            pair returned by :func:`peergraph_pyg.stores`.
        num_neighbors, alpha, eps: as :class:`peergraph.sampling.PprSampler`.

    Raises:
        NotImplementedError: the graph has types.
        ValueError, TypeError: as :class:`peergraph.sampling.PprSampler`.
    """

    def __init__(
        self, data: Any, num_neighbors: int = 64, *, alpha: float = 0.15, eps: float = 1e-4
    ) -> None:
        self.store = store_of(data)
        if not self.store.is_homogeneous:
            raise NotImplementedError(
                "PPRSampler: the graph has types; use peergraph.sampling.PprSampler with an "
                "edge_type between nodes of one type"
            )
        self.core = PprSampler(self.store, EDGE, num_neighbors=num_neighbors, alpha=alpha, eps=eps)

    def sample_from_nodes(self, inputs: Any, **kwargs: Any) -> SamplerOutput:
        """Samples the neighbours of a batch of seeds."""
        sample = self.core.sample(inputs.node)
        out = SamplerOutput(
            node=sample.nodes,
            row=sample.row,
            col=sample.col,
            edge=None,
            num_sampled_nodes=[sample.num_seeds, sample.nodes.numel() - sample.num_seeds],
            num_sampled_edges=[sample.row.numel()],
            metadata=(inputs.input_id, inputs.time),
        )
        out.edge_weight = sample.weights
        return out

    def sample_from_edges(self, inputs: Any, **kwargs: Any) -> NoReturn:
        """Raises NotImplementedError."""
        raise NotImplementedError("PPRSampler samples neighbours of nodes; use NodeLoader")


class PPRLoader(NodeLoader):  # type: ignore[misc]
    """Loads batches of seeds and the nodes with the largest personalised PageRank of each (as in
    PPRGo), with the estimates as ``batch.edge_weight``.

    A batch is one of ``NeighborLoader`` with one hop: the first ``batch.batch_size`` nodes are the
    seeds, ``batch.edge_index`` leads from a seed's nodes to it, and the seed is among them. The
    weights of a seed add up to less than 1. Attributes of edges are None, as the edges of a batch
    may be none of the graph. Batches depend on the seeds only.

    Args:
        data: as for :class:`PPRSampler`.
        num_neighbors: nodes of each seed, at most.
        input_nodes: the seeds: ids, a mask, or None for all nodes.
        alpha, eps: as :class:`peergraph.sampling.PprSampler`.
        transform: called with each batch, which has its weights.
        kwargs: of ``torch_geometric.loader.NodeLoader`` and ``torch.utils.data.DataLoader``.

    Example::

        loader = PPRLoader(data, 32, input_nodes=data.train_mask, batch_size=1024, shuffle=True)
        for batch in loader:
            h = mlp(batch.x)
            out = scatter(batch.edge_weight[:, None] * h[batch.edge_index[0]], batch.edge_index[1])
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: int = 64,
        input_nodes: Any = None,
        *,
        alpha: float = 0.15,
        eps: float = 1e-4,
        transform: Callable[[Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        sampler = PPRSampler(data, num_neighbors, alpha=alpha, eps=eps)
        self._transform_with_weights = transform
        super().__init__(data, sampler, input_nodes=input_nodes, **kwargs)

    def filter_fn(self, out: Any) -> Any:
        """Returns the batch of a sample, with the weights of its edges."""
        weights = out.edge_weight
        batch = super().filter_fn(out)
        batch.edge_weight = weights.to(batch.edge_index.device)
        transform = self._transform_with_weights
        return batch if transform is None else transform(batch)
