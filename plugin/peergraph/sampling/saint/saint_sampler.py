"""Subgraphs of random nodes, edges or walks (GraphSAINT, Zeng et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from peergraph.profiling import SAMPLE, profiled
from peergraph.sampling.arguments import (
    SAINT_STREAM,
    check_int_range,
    check_seed,
    store_device,
)
from peergraph.sampling.csc_reads import count_walks
from peergraph.sampling.neighbor.neighbor_sampler import NeighborSampler
from peergraph.sampling.saint.node_weights import NodeWeights, distinct, draw_nodes
from peergraph.sampling.sample import EdgeType, Sample
from peergraph.sampling.walks.random_walker import RandomWalker

if TYPE_CHECKING:
    from peergraph.store import Store

EdgeProbability = Literal["inverse degrees", "degree sums"]

_CHUNK = 1 << 16  # destinations that are read at once
_OTHER_SEED = 1 << 63


class SaintSampler:
    """Draws nodes in one of GraphSAINT's ways, and returns the subgraph that they induce.

    The subgraph depends on graph, options and seed only: not on device, placement, number of ranks
    or threads. Weights of nodes are in host memory once on the machine, 8 bytes a node, and also
    on each GPU that has room for them; with ``"edge"`` two such lists at most. ``"edge"`` and
    ``"walk"`` follow edges in their direction, so the first such sampler makes the store build
    :meth:`Store.reversed`. The sampler can be pickled and used in workers (CPU stores).

    Args:
        store: a graph of one node type and one relation; must outlive the sampler.
        mode: ``"node"``, nodes in proportion to their out-degrees; ``"edge"``, both ends of random
            edges; ``"walk"``, the nodes of walks along edges from uniform roots, which stay where
            a node has no out-neighbour.
        size: the number of draws with replacement: nodes, edges or roots.
        walk_length: steps of a walk.
        edge_probability: ``"inverse degrees"``, an edge in proportion to 1 / out-degree of its
            source + 1 / in-degree of its destination (the paper, DGL), or ``"degree sums"``, to
            in-degree of its source + out-degree of its destination (PyG; uniform where all are 0).
        least_out_degree: with ``"node"``, smaller out-degrees count as this: 0 (PyG) or 1 (DGL).

    Collective; rank 0 reads all edges, in pieces.

    Raises:
        ValueError: an unknown option, a number out of range, a graph of several types, or no edges
            or nodes to draw from.
        TypeError: a number that is no integer.
        RuntimeError: this process is no rank of the store.
    """

    def __init__(
        self,
        store: Store,
        mode: Literal["node", "edge", "walk"],
        size: int,
        *,
        walk_length: int = 1,
        edge_probability: EdgeProbability = "inverse degrees",
        least_out_degree: int = 0,
    ) -> None:
        _check_option("mode", mode, ("node", "edge", "walk"))
        _check_option("edge_probability", edge_probability, ("inverse degrees", "degree sums"))
        self.store, self.mode = store, mode
        self.size = check_int_range("size", size, 1, 2**31 - 1)
        self.walk_length = check_int_range("walk_length", walk_length, 1, 2**30 - 1)
        least = check_int_range("least_out_degree", least_out_degree, 0, 1)
        self.edge_type = one_relation(store)
        self.num_nodes = store.num_nodes(self.edge_type[0])
        self._induced = NeighborSampler(store, [], subgraph="induced")
        needs_edges = mode == "edge" or (mode == "node" and not least)
        if self.num_nodes == 0 or (needs_edges and store.num_edges(self.edge_type) == 0):
            raise ValueError(f"mode: {mode!r} draws from nodes and edges, and there are none")
        if mode == "node":
            self._nodes = self._weights(lambda: out_degrees(store, self.edge_type).clamp(min=least))
        else:
            self._forward = RandomWalker(store.reversed())
        if mode == "edge":
            self._backward = RandomWalker(store)
            # An edge is a random one into a node of the first weights, or out of one of the second.
            self._into, self._out_of = self._edge_weights(edge_probability)

    def sample(self, seed: int) -> Sample:
        """Draws one subgraph. On a GPU the host waits a few times. Not collective.

        Args:
            seed: the seed of the random numbers, ``0 .. 2**64 - 1``.

        Returns:
            An induced sample, whose nodes are sorted by id.
        """
        return self._induced.sample(self.draw(seed), 0)

    @profiled(SAMPLE)
    def draw(self, seed: int) -> Tensor:
        """Returns the sorted int64 ids of the nodes of a subgraph, on the store's device or on the
        CPU; see :meth:`sample`.
        """
        seed = check_seed(seed)
        if self.mode == "node":
            nodes = self._nodes.draw(self.size, seed, SAINT_STREAM)
        elif self.mode == "edge":
            nodes = self._draw_ends(seed)
        else:
            device = store_device(self.store)
            roots = draw_nodes(self.size, self.num_nodes, seed, SAINT_STREAM, device)
            nodes = self._walk(self._forward, roots, self.walk_length, seed)
        return distinct(nodes, self.num_nodes)

    def _draw_ends(self, seed: int) -> Tensor:
        """Returns both ends of random edges."""
        both = torch.tensor([self._into.total, self._out_of.total], device="cpu").cumsum(0)
        sides = draw_nodes(self.size, 2, seed, SAINT_STREAM, both.device, both)
        num_into = self.size - int(sides.sum())
        edges = []
        for side, (weights, walker, count, walk_seed) in enumerate(
            (
                (self._into, self._backward, num_into, seed),
                (self._out_of, self._forward, self.size - num_into, seed ^ _OTHER_SEED),
            )
        ):
            if count > 0:
                starts = weights.draw(count, seed, SAINT_STREAM + 1 + side)
                edges.append(self._walk(walker, starts, 1, walk_seed).view(-1))
        return torch.cat(edges)

    def _walk(self, walker: RandomWalker, starts: Tensor, length: int, seed: int) -> Tensor:
        """Returns the nodes of walks that stay where they end; `starts` are nodes."""
        starts = starts.to(store_device(self.store))
        nodes = walker.draw_walks(starts, length, seed, stay=True).nodes
        count_walks(self.store)
        return nodes

    def _edge_weights(self, probability: EdgeProbability) -> tuple[NodeWeights, NodeWeights]:
        store, edge_type = self.store, self.edge_type
        if probability == "inverse degrees":
            return (
                self._weights(lambda: store.in_degree(edge_type).sign()),
                self._weights(lambda: out_degrees(store, edge_type).sign()),
            )
        # The in-degrees of the sources of a node's out-edges add up to in-degree x out-degree, and
        # so do the out-degrees of the destinations of its in-edges.
        products = self._weights(lambda: store.in_degree(edge_type) * out_degrees(store, edge_type))
        if products.total > 0:
            return products, products
        return (
            self._weights(lambda: store.in_degree(edge_type)),
            self._weights(lambda: out_degrees(store, edge_type)),
        )

    def _weights(self, read: Callable[[], Tensor]) -> NodeWeights:
        return NodeWeights(self.store, self.num_nodes, read)


def one_relation(store: Store) -> EdgeType:
    """Returns the relation of a store of one node type; ``ValueError`` for other stores."""
    if len(store.node_types) != 1 or len(store.edge_types) != 1:
        raise ValueError(
            f"store: expected one node type and one relation, got {store.node_types} and "
            f"{store.edge_types}"
        )
    return store.edge_types[0]


def out_degrees(store: Store, edge_type: EdgeType) -> Tensor:
    """Counts the out-edges of sources, [sources] int64 on the CPU. One-sided; reads all edges.

    Takes 8 bytes a source on the store's device meanwhile.
    """
    counts = torch.zeros(store.num_nodes(edge_type[0]), dtype=torch.int64, device=store.device)
    destinations = store.num_nodes(edge_type[2])
    for start in range(0, destinations, _CHUNK):
        part = store.read_csc(edge_type, start, min(start + _CHUNK, destinations))
        sources = part.indices.long()  # not bincount, whose result has all sources in each chunk
        counts.index_add_(0, sources, torch.ones_like(sources))
    return counts.cpu()


def _check_option(name: str, value: object, options: tuple[str, ...]) -> None:
    if value not in options:
        raise ValueError(f"{name}: expected one of {options}, got {value!r}")
