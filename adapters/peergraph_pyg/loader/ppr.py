"""`PPRLoader`: a node loader whose neighbours are those with the largest personalised PageRank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch_geometric.sampler
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from peergraph.sampling import PprSampler
from peergraph.store import EDGE, EdgeType

from ..data.store_of import store_of


class PPRSampler(torch_geometric.sampler.BaseSampler):  # type: ignore[misc]
    """Takes the nodes with the largest personalised PageRank as neighbours of each seed, by
    :class:`peergraph.sampling.PprSampler`; for ``NodeLoader``.

    The sample has one edge from each such node to the seed. It has no ids, as it may be no edge of
    the graph, but a weight: ``edge_weight`` of the sampler's output, float32 ``[edges]``.

    Args:
        data: returned by :func:`peergraph_pyg.share`, or the pair returned by
            :func:`peergraph_pyg.stores`.
        num_neighbors, alpha, eps: as :class:`peergraph.sampling.PprSampler`.
        edge_type: of a graph with types: the relation that walks follow, between nodes of one type.
            The sample has edges of this type only.

    Raises:
        ValueError: of a graph with types, no relation, an unknown one or one between two types. To
            follow all relations, share ``data.to_homogeneous()``.
        ValueError, TypeError: as :class:`peergraph.sampling.PprSampler`.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: int = 64,
        *,
        alpha: float = 0.15,
        eps: float = 1e-4,
        edge_type: EdgeType | None = None,
    ) -> None:
        self.store = store_of(data)
        self._has_types = not self.store.is_homogeneous
        if self._has_types and edge_type is None:
            raise ValueError(
                "edge_type: needed, the graph has types; to follow all relations, share "
                "data.to_homogeneous()"
            )
        if edge_type is not None and not self._has_types:
            raise ValueError(f"edge_type: the graph has no types, got {edge_type!r}")
        self.core = PprSampler(
            self.store, edge_type or EDGE, num_neighbors=num_neighbors, alpha=alpha, eps=eps
        )

    @property
    def edge_type(self) -> EdgeType:
        """The relation that walks follow."""
        return self.core.edge_type

    def sample_from_nodes(self, inputs: Any, **kwargs: Any) -> SamplerOutput | HeteroSamplerOutput:
        """Samples the neighbours of a batch of seeds."""
        node_type = self.edge_type[0]
        if self._has_types and inputs.input_type != node_type:
            raise ValueError(f"input_nodes: expected {node_type!r}, got {inputs.input_type!r}")
        sample = self.core.sample(inputs.node)
        nodes = [sample.num_seeds, sample.nodes.numel() - sample.num_seeds]
        edges, metadata = [sample.row.numel()], (inputs.input_id, inputs.time)
        if self._has_types:
            out = HeteroSamplerOutput(
                node={node_type: sample.nodes},
                row={self.edge_type: sample.row},
                col={self.edge_type: sample.col},
                edge={self.edge_type: None},
                num_sampled_nodes={node_type: nodes},
                num_sampled_edges={self.edge_type: edges},
                metadata=metadata,
            )
        else:
            out = SamplerOutput(
                node=sample.nodes,
                row=sample.row,
                col=sample.col,
                edge=None,
                num_sampled_nodes=nodes,
                num_sampled_edges=edges,
                metadata=metadata,
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
    may be none of the graph. Batches depend on the seeds only. Of a graph with types, a batch has
    nodes and edges of the types of `edge_type` only, and ``batch[edge_type].edge_weight``.

    Args:
        data, alpha, eps, edge_type: as for :class:`PPRSampler`.
        num_neighbors: nodes of each seed, at most.
        input_nodes: the seeds: ids, a mask, or None for all nodes; of a graph with types, a pair of
            the node type and these.
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
        edge_type: EdgeType | None = None,
        transform: Callable[[Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        sampler = PPRSampler(data, num_neighbors, alpha=alpha, eps=eps, edge_type=edge_type)
        self._transform_with_weights = transform
        super().__init__(data, sampler, input_nodes=input_nodes, **kwargs)

    def filter_fn(self, out: Any) -> Any:
        """Returns the batch of a sample, with the weights of its edges."""
        weights = out.edge_weight
        batch = super().filter_fn(out)
        edges = batch if isinstance(out, SamplerOutput) else batch[self.node_sampler.edge_type]
        edges.edge_weight = weights.to(edges.edge_index.device)
        transform = self._transform_with_weights
        return batch if transform is None else transform(batch)
