"""A store as the graph that GraphBolt's samplers take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from dgl import graphbolt as gb
from torch import Tensor

from peergraph.sampling import NeighborSampler, exclude_edges
from peergraph.store import Store

from ..sampling import weightless
from .operators import random_number
from .together import Lists, choose_together, lists_of

Nodes = Tensor | Mapping[str, Tensor]


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
        self._samplers: dict[Any, NeighborSampler] = {}

    def __repr__(self) -> str:
        return f"StoreSamplingGraph(num_nodes={self.num_nodes}, num_edges={self.num_edges})"

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store, "_samplers": {}}

    @property
    def num_nodes(self) -> int | dict[str, int]:
        """Nodes, by type where there are several."""
        counts = {t: self.store.num_nodes(t) for t in self.store.node_types}
        return next(iter(counts.values())) if self.store.is_homogeneous else counts

    @property
    def num_edges(self) -> int | dict[str, int]:
        """Edges, by type (``"source:type:destination"``) where there are several."""
        counts = {gb.etype_tuple_to_str(t): self.store.num_edges(t) for t in self.store.edge_types}
        return next(iter(counts.values())) if self.store.is_homogeneous else counts

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

    def copy_to_shared_memory(self, shared_memory_name: str) -> StoreSamplingGraph:
        """Itself: the store is shared by all processes of the machine already."""
        return self

    def to(self, device: Any) -> StoreSamplingGraph:
        """Itself: a store stays where its plan says."""
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
            probs_name: an edge table of float32 or float64 to draw by; never what weighs 0.

        Raises:
            NotImplementedError: probabilities of another dtype.
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
        if not name.startswith("_") and hasattr(gb.FusedCSCSamplingGraph, name):
            raise NotImplementedError(f"{name}: a store has no such thing to give to GraphBolt")
        raise AttributeError(name)

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
        self, nodes: Nodes, fanouts: Tensor, replace: bool, probs_name: str | None, labor: bool
    ) -> gb.SampledSubgraphImpl:
        together = self._together(fanouts)
        if together is not None:
            core = self._core((-1,) * len(self.store.edge_types), False, probs_name, False)
        else:
            core = self._core(self._by_relation(fanouts), bool(replace), probs_name, labor)
        number = random_number()
        sample = core.sample(nodes, number)
        weights = core.choices.weights if probs_name else {}
        unwanted = weightless(sample, weights, self.store)
        if unwanted:
            sample = exclude_edges(sample, unwanted)
        given = nodes if isinstance(nodes, Tensor) else next(iter(nodes.values()))
        if together is None:
            lists = {t: lists_of(sample, t) for t in self.store.edge_types}
        else:
            lists = choose_together(
                sample, self.store, weights, together, number, replace=replace, labor=labor
            )
        parts = {t: _csc(sample.nodes[t[0]][part.row], part, given) for t, part in lists.items()}
        edge_ids = {t: part.edge_ids.to(given.device) for t, part in lists.items()}
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

    def _together(self, fanouts: Tensor) -> int | None:
        """The fanout of edges of several types, if it is one for all; None for all edges."""
        alone = len(fanouts) == 1 and len(self.store.edge_types) > 1
        return int(fanouts[0]) if alone and int(fanouts[0]) > 0 else None

    def _by_relation(self, fanouts: Tensor) -> tuple[int, ...]:
        count = len(self.store.edge_types)
        given = [int(fanout) for fanout in fanouts]
        if len(given) == 1:
            return tuple(given * count)
        if len(given) != count:
            raise ValueError(f"fanouts: expected {count}, one for each edge type, got {len(given)}")
        return tuple(given)

    def _core(
        self, fanouts: tuple[int, ...], replace: bool, weights: str | None, labor: bool
    ) -> NeighborSampler:
        key = (fanouts, replace, weights, labor)
        if key not in self._samplers:
            self._check_weights(weights)
            by_type = zip(self.store.edge_types, fanouts, strict=True)
            self._samplers[key] = NeighborSampler(
                self.store,
                {edge_type: [fanout] for edge_type, fanout in by_type},
                replace=replace,
                weights=weights,
                labor=labor,
            )
        return self._samplers[key]

    def _check_weights(self, name: str | None) -> None:
        for edge_type in self.store.edge_types if name else ():
            if name in self.store.edge_table_names(edge_type):
                dtype = self.store.edge_table(name, edge_type).dtype
                if dtype not in (torch.float32, torch.float64):
                    raise NotImplementedError(f"probs_name: {name!r} is {dtype}")


def _csc(sources: Tensor, part: Lists, like: Tensor) -> gb.CSCFormatBase:
    """As GraphBolt has it, on the device and in the id type of the nodes that were given."""
    return gb.CSCFormatBase(
        indptr=part.indptr.to(like.device, torch.int64), indices=sources.to(like)
    )
