"""Layer-wise sampling of graphs with types, as the heterogeneous graph transformer trains on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from peergraph import _C
from peergraph.memory.device.launching import empty, launch_on
from peergraph.profiling import SAMPLE, profiled
from peergraph.sampling.arguments import (
    HGT_STREAM,
    check_edge_type,
    check_int_range,
    check_integer_vector,
    check_seed,
    store_device,
)
from peergraph.sampling.neighbor.neighbor_sampler import NeighborSampler
from peergraph.sampling.sample import EdgeType, NodeType, Sample

if TYPE_CHECKING:
    from peergraph.store import Store

# A node passes its weight on to at most this many in-neighbours, as in PyG's sampler.
_MAX_NEIGHBORS = 50
# Weights are integers, so that their sums are the same in any order: on the CPU and on a GPU.
_WEIGHT_ONE = 1 << 30
# The weight of a node of the sample, below 0 with all that it can get later.
_TAKEN = -(1 << 62)


class _Budget:
    """What nodes of a type got so far: their summed weights; nodes of the sample have less than 0.

    Args:
        seeds: int64 ids of the nodes of the type that are in the sample.
    """

    def __init__(self, seeds: Tensor) -> None:
        self._seeds: list[Tensor] = [seeds]
        self._nodes: list[Tensor] = []
        self._weights: list[Tensor] = []

    def add(self, nodes: Tensor, weights: Tensor) -> None:
        """Gives int64 weights to nodes, which may repeat."""
        self._nodes.append(nodes)
        self._weights.append(weights)

    def pick(self, count: int, seed: int, stream: int) -> Tensor:
        """Draws at most `count` nodes without replacement, each in proportion to the square of its
        weight, and takes them into the sample.
        """
        nodes, places = torch.unique(torch.cat(self._nodes + self._seeds), return_inverse=True)
        gains = torch.cat(self._weights)
        weights = torch.zeros_like(nodes).index_add_(0, places[: gains.numel()], gains)
        weights.index_fill_(0, places[gains.numel() :], _TAKEN)
        keys = empty(nodes.numel(), torch.float64, nodes.device)
        _C.square_keys(nodes, weights, seed, stream, keys, launch_on(nodes.device))
        picked = _least(keys, count)
        weights.index_fill_(0, picked, _TAKEN)
        self._seeds, self._nodes, self._weights = [], [nodes], [weights]
        drawn: Tensor = nodes[picked]
        return drawn


class HgtSampler:
    """Samples a fixed number of nodes of each type in each hop (HGT, Hu et al. 2020, Algorithm 1).

    A node of the sample gives each of its in-neighbours, by each relation, one divided by their
    number; of more than 50, as in PyG, to 50 random ones. A hop draws nodes of each type without
    replacement, in proportion to the square of the sum that they got. The sample has all edges
    among its nodes, so that types stay balanced and the sample is dense.

    The sample depends on graph, seeds, options and `seed` only: not on device, placement, number of
    ranks or threads. It can be pickled, used in workers (CPU stores) and by several threads.

    Args:
        store: the graph; must outlive the sampler.
        num_samples: nodes per hop by node type, lists of one length; types without a list get no
            nodes but seeds.
        edge_types: the relations to follow and to return; default: all of the store.

    Raises:
        ValueError: an unknown type, a negative number, or lists of different lengths.
        TypeError: a number that is no integer.

    Example::

        sampler = HgtSampler(store, {"paper": [512] * 4, "author": [512] * 4})
        sample = sampler.sample({"paper": seeds}, next_seed())
    """

    def __init__(
        self,
        store: Store,
        num_samples: Mapping[NodeType, Sequence[int]],
        edge_types: Sequence[EdgeType] | None = None,
    ) -> None:
        lengths = {len(numbers) for numbers in num_samples.values()}
        if len(lengths) > 1:
            raise ValueError(f"num_samples: expected lists of one length, got lengths {lengths}")
        for node_type in num_samples:
            if node_type not in store.node_types:
                raise ValueError(f"num_samples: {node_type!r} is not one of {store.node_types}")
        self.store = store
        self.num_samples = {
            node_type: [check_int_range("num_samples", n, 0, 2**31 - 1) for n in numbers]
            for node_type, numbers in num_samples.items()
        }
        self.num_hops = max(lengths, default=0)
        self.edge_types = [
            check_edge_type("edge_types", store, edge_type)
            for edge_type in (store.edge_types if edge_types is None else edge_types)
        ]
        fanouts = {t: [_MAX_NEIGHBORS if t in self.edge_types else 0] for t in store.edge_types}
        self._neighbors = NeighborSampler(store, fanouts, edge_ids=False)
        self._induced = NeighborSampler(store, [], subgraph="induced")

    @profiled(SAMPLE)
    def sample(self, seeds: Mapping[NodeType, Tensor], seed: int) -> Sample:
        """Samples around `seeds`. On a GPU the host waits a few times for each hop and type.

        Args:
            seeds: [S] user ids, int32 or int64, by node type, on any device; duplicates stay.
            seed: the seed of the random numbers, ``0 .. 2**64 - 1``.

        Returns:
            An induced sample: of each type the seeds, then the nodes of each hop. Relations that
            are not in `edge_types` are missing.

        Raises as :meth:`NeighborSampler.sample`.
        """
        seed = check_seed(seed)
        device = store_device(self.store)
        nodes = {
            t: check_integer_vector("seeds", ids).to(device, torch.int64)
            for t, ids in seeds.items()
        }
        none = empty(0, torch.int64, device)
        budgets = {t: _Budget(nodes.get(t, none)) for t in self.store.node_types}
        newest: Mapping[NodeType, Tensor] = nodes
        for hop in range(self.num_hops):
            self._extend(budgets, newest, (seed + hop) % 2**64)
            newest = {}
            for place, (node_type, budget) in enumerate(budgets.items()):
                count = self.num_samples.get(node_type, [0] * self.num_hops)[hop]
                if count > 0:
                    stream = HGT_STREAM + hop * len(budgets) + place
                    newest[node_type] = budget.pick(count, seed, stream)
            for node_type, ids in newest.items():
                earlier = nodes.get(node_type)
                nodes[node_type] = ids if earlier is None else torch.cat([earlier, ids])
        return self._among(nodes)

    def _extend(
        self, budgets: Mapping[NodeType, _Budget], newest: Mapping[NodeType, Tensor], seed: int
    ) -> None:
        """Gives the weights of the newest nodes to their in-neighbours."""
        hop = self._neighbors.sample(newest, seed)
        weights = {t: torch.zeros_like(ids) for t, ids in hop.nodes.items()}
        for edge_type in self.edge_types:
            degrees = hop.indptr[edge_type][0].diff()
            shares = _WEIGHT_ONE // degrees.clamp_(min=1)
            weights[edge_type[0]].index_add_(0, hop.row[edge_type], shares[hop.col[edge_type]])
        for node_type, ids in hop.nodes.items():
            budgets[node_type].add(ids, weights[node_type])

    def _among(self, nodes: Mapping[NodeType, Tensor]) -> Sample:
        sample = self._induced.sample(nodes, 0)
        for by_type in (sample.row, sample.col, sample.num_sampled_edges, sample.edge_ids or {}):
            for edge_type in [t for t in by_type if t not in self.edge_types]:
                del by_type[edge_type]
        return sample


def _least(keys: Tensor, count: int) -> Tensor:
    """Returns the places of the `count` least keys, sorted by key and then by place; fewer if fewer
    keys are finite.
    """
    if keys.is_cuda:  # selecting would wait for the number of equal keys
        least, places = (part[:count] for part in keys.sort(stable=True))
    else:
        places = torch.arange(keys.numel(), device=keys.device)
        if keys.numel() > count:
            places = (keys <= keys.kthvalue(count).values).nonzero().view(-1)
        least, order = (part[:count] for part in keys[places].sort(stable=True))
        places = places[order]
    return places[: int(least.isfinite().sum())]
