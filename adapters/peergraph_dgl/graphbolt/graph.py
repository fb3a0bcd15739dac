"""A store as a graph for GraphBolt's samplers."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import torch
from dgl import graphbolt as gb
from torch import Tensor

from peergraph.store import Store

from .hop_sampler import HopSampler, Nodes, TimeLimits


class Metadata(NamedTuple):
    """The ids of node and edge types; None for a homogeneous graph."""

    node_type_to_id: dict[str, int] | None
    edge_type_to_id: dict[str, int] | None


class SamplingGraph(gb.SamplingGraph):  # type: ignore[misc]
    """The structure of a store as a GraphBolt sampling graph.

    The store's device samples, and the results are on the device of the seed nodes: with GPU
    stores, put ``copy_to`` before ``sample_neighbor``. Random numbers come from the generator of
    ``gb.seed``, else from torch's. One-sided. Pickles as a handle.

    Args:
        store: the store, such as ``store_of(g)``.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self._hop_sampler = HopSampler(store)

    def __repr__(self) -> str:
        return f"SamplingGraph(num_nodes={self.num_nodes}, num_edges={self.num_edges})"

    @property
    def num_nodes(self) -> int | dict[str, int]:
        """The number of nodes; a dict by type for several types."""
        counts = {t: self.store.num_nodes(t) for t in self.store.node_types}
        return self.total_num_nodes if self.store.is_homogeneous else counts

    @property
    def num_edges(self) -> int | dict[str, int]:
        """The number of edges; a dict by ``"source:type:destination"`` for several types."""
        counts = {gb.etype_tuple_to_str(t): self.store.num_edges(t) for t in self.store.edge_types}
        return self.total_num_edges if self.store.is_homogeneous else counts

    @property
    def total_num_nodes(self) -> int:
        """The number of nodes of all types."""
        return sum(self.store.num_nodes(t) for t in self.store.node_types)

    @property
    def total_num_edges(self) -> int:
        """The number of edges of all types."""
        return sum(self.store.num_edges(t) for t in self.store.edge_types)

    @property
    def node_type_to_id(self) -> dict[str, int] | None:
        """Ids of node types, in the order of the store; None for a homogeneous graph."""
        if self.store.is_homogeneous:
            return None
        return {t: i for i, t in enumerate(self.store.node_types)}

    @property
    def edge_type_to_id(self) -> dict[str, int] | None:
        """Ids of edge types, in the order of the fanouts; None for a homogeneous graph."""
        if self.store.is_homogeneous:
            return None
        return {gb.etype_tuple_to_str(t): i for i, t in enumerate(self.store.edge_types)}

    @property
    def metadata(self) -> Metadata:
        """The ids of types, which DGL 2.0 reads."""
        return Metadata(self.node_type_to_id, self.edge_type_to_id)

    @property
    def node_type_offset(self) -> Tensor | None:
        """[node types + 1] int64 offsets of the types among all nodes; None for one type."""
        if self.store.is_homogeneous:
            return None
        counts = [self.store.num_nodes(t) for t in self.store.node_types]
        return torch.tensor([0, *accumulate(counts)], dtype=torch.int64, device="cpu")

    @property
    def node_attributes(self) -> None:
        """None: samplers find tables of the store by their names."""
        return

    @property
    def edge_attributes(self) -> None:
        """None: samplers find tables of the store by their names, and samples have edge ids."""
        return

    def copy_to_shared_memory(self, shared_memory_name: str) -> SamplingGraph:
        """Returns the graph itself: all processes of the machine share the store already."""
        return self

    def to(self, device: Any) -> SamplingGraph:
        """Returns the graph itself: the plan of the store places it."""
        return self

    def pin_memory_(self) -> SamplingGraph:
        """Returns the graph itself: GPUs read the store directly."""
        return self

    def sample_neighbors(
        self, nodes: Nodes, fanouts: Tensor, replace: bool = False, probs_name: str | None = None
    ) -> gb.SampledSubgraphImpl:
        """Samples one hop of in-neighbours, as ``FusedCSCSamplingGraph.sample_neighbors``.

        Args:
            nodes: [S] ids without duplicates; a dict by type for several types.
            fanouts: one for each edge type, or one across all edge types, for which all
                in-edges are read; -1: all.
            replace: whether to draw with replacement.
            probs_name: name of edge tables with weights; edges with weight 0 are never drawn. With
                weights of other dtypes than float32, float64 and bool, all in-edges are read.

        Raises:
            ValueError: no edge type has such a table, a weight is negative or not finite, or the
                number of fanouts is wrong.
        """
        return self._sample(nodes, fanouts, replace, probs_name, labor=False)

    def sample_layer_neighbors(
        self, nodes: Nodes, fanouts: Tensor, replace: bool = False, probs_name: str | None = None
    ) -> gb.SampledSubgraphImpl:
        """Does the same as :meth:`sample_neighbors`, by LABOR: one random number for each source
        node.

        Raises:
            NotImplementedError: `replace` is set.
        """
        if replace:
            raise NotImplementedError("replace: LABOR draws each node once")
        return self._sample(nodes, fanouts, False, probs_name, labor=True)

    def temporal_sample_neighbors(
        self,
        nodes: Nodes,
        input_nodes_timestamp: Nodes,
        fanouts: Tensor,
        replace: bool = False,
        probs_name: str | None = None,
        node_timestamp_attr_name: str | None = None,
        edge_timestamp_attr_name: str | None = None,
    ) -> gb.SampledSubgraphImpl:
        """Does the same as :meth:`sample_neighbors`, with edges with times before those of the seed
        nodes.

        With times of both nodes and edges, and with one fanout across edge types, all in-edges are
        read.

        Args:
            nodes: as in :meth:`sample_neighbors`; duplicates are allowed, with different times.
            input_nodes_timestamp: [S] int32 or int64 times of `nodes`, by type as `nodes`.
            node_timestamp_attr_name: name of node tables of int32 or int64 times. Only sources with
                an earlier time than the seed node are drawn. Types without such a table are not
                filtered.
            edge_timestamp_attr_name: name of edge tables of times, in the same way.

        Raises:
            ValueError: no type has such a table, times have another shape than `nodes`, or as
                :meth:`sample_neighbors`.
            TypeError: times have another dtype.
        """
        times = TimeLimits(
            input_nodes_timestamp, node_timestamp_attr_name, edge_timestamp_attr_name
        )
        return self._sample(nodes, fanouts, replace, probs_name, labor=False, times=times)

    def in_subgraph(self, nodes: Nodes) -> gb.SampledSubgraphImpl:
        """Returns all in-edges of the nodes."""
        return self._sample(nodes, torch.tensor([-1], device="cpu"), False, None, labor=False)

    def sample_negative_edges_uniform(
        self, edge_type: str | None, node_pairs: tuple[Tensor, Tensor], negative_ratio: int
    ) -> tuple[None, Tensor]:
        """Draws destinations from all nodes for each source of `node_pairs`; returns no sources."""
        sources = node_pairs[0]
        return None, self._random_destinations(edge_type, sources, negative_ratio)

    def sample_negative_edges_uniform_2(
        self, edge_type: str | None, node_pairs: Tensor, negative_ratio: int
    ) -> Tensor:
        """Returns the [P, 2] pairs, then ``P * negative_ratio`` pairs with random destinations."""
        sources = node_pairs[:, 0]
        drawn = self._random_destinations(edge_type, sources, negative_ratio)
        negatives = torch.stack([sources.repeat_interleave(negative_ratio), drawn], dim=1)
        return torch.cat([node_pairs, negatives])

    def __getattr__(self, name: str) -> Any:
        if name in _STRUCTURE:
            raise NotImplementedError(
                f"{name}: the memory of all ranks holds the structure; store.edge_index(edge_type) "
                "reads all edges of a relation, store.in_degree() the degrees. Leave "
                "DataLoader(overlap_graph_fetch=True) off, which needs it: GPUs read the store "
                "directly"
            )
        if not name.startswith("_") and hasattr(gb.FusedCSCSamplingGraph, name):
            raise NotImplementedError(f"{name} is not implemented by a SamplingGraph")
        raise AttributeError(f"'SamplingGraph' object has no attribute {name!r}")

    def _random_destinations(self, edge_type: str | None, sources: Tensor, ratio: int) -> Tensor:
        types = self.store.edge_types
        destination = types[0][2] if not edge_type else gb.etype_str_to_tuple(edge_type)[2]
        return torch.randint(
            0,
            self.store.num_nodes(destination),
            (sources.shape[0] * ratio,),
            dtype=sources.dtype,
            device=sources.device,
        )

    def _sample(
        self,
        nodes: Nodes,
        fanouts: Tensor,
        replace: bool,
        probs_name: str | None,
        labor: bool,
        times: TimeLimits | None = None,
    ) -> gb.SampledSubgraphImpl:
        seeds = [nodes] if isinstance(nodes, Tensor) else list(nodes.values())
        if any(ids.dtype == torch.bool for ids in seeds):
            raise TypeError("seeds must be ids, got a mask: pass mask.nonzero().flatten()")
        counts = [int(fanout) for fanout in fanouts]
        hop = self._hop_sampler.draw(nodes, counts, bool(replace), probs_name, labor, times)
        # Results have the device and the id type of the seed nodes, as in GraphBolt, which passes
        # an empty tensor on the CPU for types without seed nodes.
        like = next((ids for ids in seeds if ids.numel()), seeds[0])
        parts = {
            t: gb.CSCFormatBase(
                indptr=edges.indptr.to(like.device, torch.int64), indices=hop.sources[t].to(like)
            )
            for t, edges in hop.neighbors.items()
        }
        edge_ids = {t: edges.edge_ids.to(like.device) for t, edges in hop.neighbors.items()}
        if self.store.is_homogeneous:
            (edge_type,) = parts
            return gb.SampledSubgraphImpl(
                sampled_csc=parts[edge_type], original_edge_ids=edge_ids[edge_type]
            )
        name = gb.etype_tuple_to_str
        return gb.SampledSubgraphImpl(
            sampled_csc={name(t): part for t, part in parts.items()},
            original_edge_ids={name(t): ids for t, ids in edge_ids.items()},
        )


# The tensors of GraphBolt's own graph.
_STRUCTURE = ("csc_indptr", "indices", "type_per_edge")
