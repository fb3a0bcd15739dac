"""A store as the graph that GraphBolt's samplers take."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import torch
from dgl import graphbolt as gb
from torch import Tensor

from peergraph.store import Store

from .hop_sampler import HopSampler, Nodes, Times


class Metadata(NamedTuple):
    """The ids of node and edge types; None where there is one type."""

    node_type_to_id: dict[str, int] | None
    edge_type_to_id: dict[str, int] | None


class StoreSamplingGraph(gb.SamplingGraph):  # type: ignore[misc]
    """The structure of a store as a GraphBolt sampling graph.

    Samples run where the store is and come back on the device of the nodes: for GPU stores,
    ``copy_to`` goes before ``sample_neighbor``. Random numbers are torch's, or those that
    ``gb.seed`` starts. One-sided; pickles as a handle.

    Args:
        store: as ``store_of(g)`` gives it.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self._hops = HopSampler(store)

    def __repr__(self) -> str:
        return f"StoreSamplingGraph(num_nodes={self.num_nodes}, num_edges={self.num_edges})"

    @property
    def num_nodes(self) -> int | dict[str, int]:
        """Nodes, by type where there are several."""
        counts = {t: self.store.num_nodes(t) for t in self.store.node_types}
        return self.total_num_nodes if self.store.is_homogeneous else counts

    @property
    def num_edges(self) -> int | dict[str, int]:
        """Edges, by type (``"source:type:destination"``) where there are several."""
        counts = {gb.etype_tuple_to_str(t): self.store.num_edges(t) for t in self.store.edge_types}
        return self.total_num_edges if self.store.is_homogeneous else counts

    @property
    def total_num_nodes(self) -> int:
        """Nodes of all types."""
        return sum(self.store.num_nodes(t) for t in self.store.node_types)

    @property
    def total_num_edges(self) -> int:
        """Edges of all types."""
        return sum(self.store.num_edges(t) for t in self.store.edge_types)

    @property
    def node_type_to_id(self) -> dict[str, int] | None:
        """Node types in the order of the store; None where there is one."""
        if self.store.is_homogeneous:
            return None
        return {t: i for i, t in enumerate(self.store.node_types)}

    @property
    def edge_type_to_id(self) -> dict[str, int] | None:
        """Edge types in the order of the store, which is that of fanouts; None for one."""
        if self.store.is_homogeneous:
            return None
        return {gb.etype_tuple_to_str(t): i for i, t in enumerate(self.store.edge_types)}

    @property
    def metadata(self) -> Metadata:
        """The ids of types, as DGL 2.0 gives them."""
        return Metadata(self.node_type_to_id, self.edge_type_to_id)

    @property
    def node_type_offset(self) -> Tensor | None:
        """[node types + 1] int64: where each type begins, counting all nodes; None for one type."""
        if self.store.is_homogeneous:
            return None
        counts = [self.store.num_nodes(t) for t in self.store.node_types]
        return torch.tensor([0, *accumulate(counts)], dtype=torch.int64, device="cpu")

    @property
    def node_attributes(self) -> None:
        """None: tables of the store are features, and go by their names in samplers."""
        return

    @property
    def edge_attributes(self) -> None:
        """None, as :attr:`node_attributes`; samples have the edge ids without being asked."""
        return

    def copy_to_shared_memory(self, shared_memory_name: str) -> StoreSamplingGraph:
        """Itself: the store is shared by all processes of the machine already."""
        return self

    def to(self, device: Any) -> StoreSamplingGraph:
        """Itself: a store stays where its plan says."""
        return self

    def pin_memory_(self) -> StoreSamplingGraph:
        """Itself: GPUs reach the store without being told."""
        return self

    def sample_neighbors(
        self, nodes: Nodes, fanouts: Tensor, replace: bool = False, probs_name: str | None = None
    ) -> gb.SampledSubgraphImpl:
        """One hop of in-neighbours, as GraphBolt's graph gives it.

        Args:
            nodes: [S] ids, by type where there are several; not repeated.
            fanouts: one for each edge type, or one for the edges of all types together, which are
                then chosen among whole lists; -1: all.
            replace: with replacement.
            probs_name: an edge table to draw by; never what weighs 0. Values that are not float32
                or float64 (masks, half precision) are drawn by among whole lists.

        Raises:
            ValueError: no edge type has such a table, or it has values that are negative or not
                finite; another number of fanouts.
        """
        return self._sample(nodes, fanouts, replace, probs_name, labor=False)

    def sample_layer_neighbors(
        self, nodes: Nodes, fanouts: Tensor, replace: bool = False, probs_name: str | None = None
    ) -> gb.SampledSubgraphImpl:
        """As :meth:`sample_neighbors`, by LABOR: one random number for each source node.

        Raises:
            NotImplementedError: `replace`, and as there.
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
        """As :meth:`sample_neighbors`, of edges that are older than the nodes they lead to.

        With times of both nodes and edges, and with one fanout for several edge types, edges are
        chosen among whole lists.

        Args:
            nodes: may be repeated, with other times.
            input_nodes_timestamp: [S] int32 or int64 times, by type as `nodes`.
            node_timestamp_attr_name: a node table of int32 or int64: only sources whose time is
                smaller than the node's. Node types without such a table are not filtered.
            edge_timestamp_attr_name: an edge table likewise, of the edges' times.

        Raises:
            ValueError: no type has such a table; times of another shape; as there.
            TypeError: times of another dtype.
        """
        times = Times(input_nodes_timestamp, node_timestamp_attr_name, edge_timestamp_attr_name)
        return self._sample(nodes, fanouts, replace, probs_name, labor=False, times=times)

    def in_subgraph(self, nodes: Nodes) -> gb.SampledSubgraphImpl:
        """All edges into the nodes."""
        return self._sample(nodes, torch.tensor([-1], device="cpu"), False, None, labor=False)

    def sample_negative_edges_uniform(
        self, edge_type: str | None, node_pairs: tuple[Tensor, Tensor], negative_ratio: int
    ) -> tuple[None, Tensor]:
        """Destinations drawn from all nodes for the sources of `node_pairs`, which stay as is."""
        sources = node_pairs[0]
        return None, self._any_destinations(edge_type, sources, negative_ratio)

    def sample_negative_edges_uniform_2(
        self, edge_type: str | None, node_pairs: Tensor, negative_ratio: int
    ) -> Tensor:
        """[P, 2] pairs, followed by ``P * negative_ratio`` of their sources and any destination."""
        sources = node_pairs[:, 0]
        drawn = self._any_destinations(edge_type, sources, negative_ratio)
        negatives = torch.stack([sources.repeat_interleave(negative_ratio), drawn], dim=1)
        return torch.cat([node_pairs, negatives])

    def __getattr__(self, name: str) -> Any:
        if name in _STRUCTURE:
            raise NotImplementedError(
                f"{name}: the structure is spread over the memory of the ranks; "
                "store.edge_index(edge_type) reads all edges of a relation, store.in_degree() "
                "their numbers. DataLoader(overlap_graph_fetch=True) needs it: leave that off, "
                "GPUs read the store by themselves"
            )
        if not name.startswith("_") and hasattr(gb.FusedCSCSamplingGraph, name):
            raise NotImplementedError(f"{name}: a store has no such thing to give to GraphBolt")
        raise AttributeError(f"'StoreSamplingGraph' object has no attribute {name!r}")

    def _any_destinations(self, edge_type: str | None, sources: Tensor, ratio: int) -> Tensor:
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
        times: Times | None = None,
    ) -> gb.SampledSubgraphImpl:
        counts = [int(fanout) for fanout in fanouts]
        hop = self._hops.draw(nodes, counts, bool(replace), probs_name, labor, times)
        # As GraphBolt has it, on the device and in the id type of the nodes that were given. For
        # types that have none, it gives an empty tensor on the CPU.
        given = [nodes] if isinstance(nodes, Tensor) else list(nodes.values())
        like = next((ids for ids in given if ids.numel()), given[0])
        parts = {
            t: gb.CSCFormatBase(
                indptr=part.indptr.to(like.device, torch.int64), indices=hop.sources[t].to(like)
            )
            for t, part in hop.lists.items()
        }
        edge_ids = {t: part.edge_ids.to(like.device) for t, part in hop.lists.items()}
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


# What GraphBolt's own graph holds as tensors.
_STRUCTURE = ("csc_indptr", "indices", "type_per_edge")
