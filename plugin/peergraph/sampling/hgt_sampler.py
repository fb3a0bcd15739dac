"""Layer-wise sampling of graphs with types, as the heterogeneous graph transformer trains on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from peergraph.memory.device.launching import empty
from peergraph.profiling import SAMPLE, profiled
from peergraph.sampling.arguments import check_edge_type, check_int_range, check_seed, store_device
from peergraph.sampling.neighbor.neighbor_sampler import NeighborSampler
from peergraph.sampling.sample import EdgeType, NodeType, Sample

if TYPE_CHECKING:
    from peergraph.store import Store

# A node passes its weight on to at most this many in-neighbours, as in PyG's sampler.
_MAX_NEIGHBORS = 50
# Weights are integers, so that their sums are the same in any order: on the CPU and on a GPU.
_WEIGHT_ONE = 1 << 30
_IMPORTANCE_ONE = 1 << 38


class _Budget(NamedTuple):
    """In-neighbours of the nodes so far that are not in the sample, and their summed weights."""

    nodes: Tensor
    weights: Tensor


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
        # Its numbers are drawn on the CPU, where every device gets the same ones.
        generator = torch.Generator(device="cpu").manual_seed(seed)
        device = store_device(self.store)
        nodes = {t: ids.to(device, torch.int64) for t, ids in seeds.items()}
        budgets: dict[NodeType, _Budget] = {}
        newest: Mapping[NodeType, Tensor] = nodes
        for hop in range(self.num_hops):
            self._extend(budgets, newest, nodes, (seed + hop) % 2**64)
            newest = {}
            for node_type in self.store.node_types:
                count = self.num_samples.get(node_type, [0] * self.num_hops)[hop]
                if count > 0 and node_type in budgets:
                    picked = _pick(budgets[node_type], count, generator)
                    budgets[node_type] = _without(budgets[node_type], picked)
                    newest[node_type] = picked
            for node_type, ids in newest.items():
                earlier = nodes.get(node_type)
                nodes[node_type] = ids if earlier is None else torch.cat([earlier, ids])
        return self._among(nodes)

    def _extend(
        self,
        budgets: dict[NodeType, _Budget],
        newest: Mapping[NodeType, Tensor],
        nodes: Mapping[NodeType, Tensor],
        seed: int,
    ) -> None:
        """Adds the weights of the newest nodes' in-neighbours to the budgets."""
        hop = self._neighbors.sample(newest, seed)
        weights = {t: torch.zeros_like(ids) for t, ids in hop.nodes.items()}
        for edge_type in self.edge_types:
            degrees = hop.indptr[edge_type][0].diff()
            shares = (_WEIGHT_ONE // degrees.clamp(min=1)).repeat_interleave(
                degrees, output_size=hop.row[edge_type].numel()
            )
            weights[edge_type[0]].index_add_(0, hop.row[edge_type], shares)
        for node_type, ids in hop.nodes.items():
            gains = weights[node_type]
            candidates = _Budget(ids[gains > 0], gains[gains > 0])
            if node_type in nodes:
                candidates = _without(candidates, nodes[node_type])
            earlier = budgets.get(node_type)
            budgets[node_type] = candidates if earlier is None else _sum(earlier, candidates)

    def _among(self, nodes: Mapping[NodeType, Tensor]) -> Sample:
        sample = self._induced.sample(nodes, 0)
        for by_type in (sample.row, sample.col, sample.num_sampled_edges, sample.edge_ids or {}):
            for edge_type in [t for t in by_type if t not in self.edge_types]:
                del by_type[edge_type]
        return sample


def _sum(a: _Budget, b: _Budget) -> _Budget:
    nodes, place = torch.unique(torch.cat([a.nodes, b.nodes]), return_inverse=True)
    weights = torch.zeros_like(nodes)
    return _Budget(nodes, weights.index_add_(0, place, torch.cat([a.weights, b.weights])))


def _without(budget: _Budget, nodes: Tensor) -> _Budget:
    rest = ~torch.isin(budget.nodes, nodes)
    return _Budget(budget.nodes[rest], budget.weights[rest])


def _pick(budget: _Budget, count: int, generator: torch.Generator) -> Tensor:
    """Draws `count` nodes without replacement, each in proportion to its squared weight.

    Draws with replacement of which repetitions are drawn again among the rest: the same
    distribution. Fewer candidates than `count` are all taken.
    """
    if budget.nodes.numel() <= count:
        return budget.nodes
    shares = budget.weights.double() / budget.weights.max()
    importance = (shares.square() * _IMPORTANCE_ONE).long().clamp(min=1)
    picked = empty(0, torch.int64, importance.device)
    while picked.numel() < count:
        ends = importance.cumsum(0)
        missing = count - picked.numel()
        draws = torch.rand(missing, generator=generator, dtype=torch.float64, device="cpu")
        values = (draws.to(ends.device) * ends[-1]).long().clamp(max=ends[-1] - 1)
        places = torch.unique(torch.searchsorted(ends, values, right=True))
        importance[places] = 0
        picked = torch.cat([picked, places])
    return budget.nodes[picked]
