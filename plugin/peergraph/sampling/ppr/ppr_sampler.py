"""Neighbours by personalised PageRank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import Buffers, launch_on
from peergraph.profiling import SAMPLE, profiled
from peergraph.sampling.arguments import (
    check_edge_type,
    check_int_range,
    check_node_ids,
    store_device,
)
from peergraph.sampling.csc_reads import count_walks
from peergraph.sampling.sample import EdgeType
from peergraph.sampling.walks.unique_nodes import UniqueNodes

if TYPE_CHECKING:
    from peergraph.store import Store

# Amounts are integers in units of 2**-62; alpha is a fraction of 2**64.
_WHOLE = 1 << 62
_MIN_EPS = 2.0**-30
_MIN_ALPHA = 2.0**-10


class PprNeighbors(NamedTuple):
    """The result of :meth:`PprSampler.neighbors`, on the store's device.

    Args:
        nodes: [S, num_neighbors] int64 user ids, by falling weight; of equal weights, the lowest id
            comes first. -1 where the search has reached fewer nodes.
        weights: [S, num_neighbors] float32 estimates of the PageRank; 0 where there is no node.
    """

    nodes: Tensor
    weights: Tensor


@dataclass
class PprSample:
    """The result of :meth:`PprSampler.sample`, on the store's device.

    Args:
        nodes: [N] int64 user ids: seeds first and in order, then by first appearance.
        row: [edges] int64 sources, as rows of `nodes`.
        col: [edges] int64 targets, as rows of the seeds, ascending.
        weights: [edges] float32 estimates of the PageRank; they fall within the edges of a target.
        num_seeds: the number of seeds.
    """

    nodes: Tensor
    row: Tensor
    col: Tensor
    weights: Tensor
    num_seeds: int


class PprSampler:
    """Takes, for each seed, the nodes with the largest personalised PageRank (PPRGo; the search is
    the forward push of Andersen, Chung and Lang 2006).

    The PageRank of a node is the probability that a walk from the seed ends there, where each step
    ends the walk with probability `alpha`, or else goes to a random **in-neighbour**, as sampling
    does. For PageRanks along out-edges (``torch_geometric.utils.get_ppr``), use
    ``store.reversed()``. A walk ends at a node without in-neighbours; of its probability there,
    only `alpha` counts. Divided by their sum over all nodes, these are the PageRanks that NetworkX
    returns, where such walks start again.

    An estimate is never above the PageRank. After the search, fewer than ``eps * max(degree, 1)``
    of the walks are left at any node. On an undirected graph, the estimate of a node is therefore
    less than ``eps * degree`` below its PageRank. The seed has an estimate of `alpha` or more; a
    seed of more than ``1 / eps`` in-neighbours has no other nodes.

    A search pushes all nodes that are due at the same time, with integers in units of 2**-62. So
    the result depends on graph, seeds and options only, not on device, placement, number of ranks
    or threads; ``peergraph.reference.ppr`` is the specification. Where ranks share the structure,
    each reads the others' lists.

    Args:
        store: the graph; must outlive the sampler.
        edge_type: a relation between nodes of one type. Default: the store's only relation.
        num_neighbors: nodes of each seed, at most; the seed itself counts, as it is among them.
        alpha: the probability that a walk ends at a step (PyG's and PPRGo's `alpha`; NetworkX's
            `alpha` is ``1 - alpha``); 2**-10 to below 1.
        eps: the precision, 2**-30 to 1. A search reads at most ``1 / (alpha * eps)`` edges.

    Raises:
        ValueError: an unknown relation, a relation between two types, a number out of range.
        TypeError: a number of another type.

    Example::

        sampler = PprSampler(store, num_neighbors=32, alpha=0.15, eps=1e-4)
        nodes, weights = sampler.neighbors(torch.tensor([7, 12]))  # [2, 32] each
    """

    def __init__(
        self,
        store: Store,
        edge_type: EdgeType | None = None,
        *,
        num_neighbors: int = 64,
        alpha: float = 0.15,
        eps: float = 1e-4,
    ) -> None:
        if edge_type is None:
            if len(store.edge_types) != 1:
                raise ValueError(f"edge_type: one of {list(store.edge_types)} is needed")
            edge_type = store.edge_types[0]
        self.edge_type = check_edge_type("edge_type", store, edge_type)
        if edge_type[0] != edge_type[2]:
            raise ValueError(f"edge_type: {edge_type} joins two node types, expected one type")
        self.store = store
        self.num_neighbors = check_int_range("num_neighbors", num_neighbors, 1, 2**31 - 1)
        self.alpha = _check_number("alpha", alpha, _MIN_ALPHA, 1.0 - 2.0**-53)
        self.eps = _check_number("eps", eps, _MIN_EPS, 1.0)
        self._unique = UniqueNodes(store, edge_type[2], "PprSampler")

    @profiled(SAMPLE)
    def neighbors(self, seeds: Tensor) -> PprNeighbors:
        """Returns the nodes with the largest PageRank of each seed.

        Runs on the store's device, on the current stream; waits for the device only where `seeds`
        are on a GPU (to check them) or in pinned memory. Not collective.

        Args:
            seeds: [S] user ids, int32 or int64, on any device; duplicates are allowed.

        Raises:
            IndexError: a seed that is no node, the first such.
            TypeError, ValueError: seeds of another dtype, or not 1-D.
        """
        result = self._search(check_node_ids("seeds", seeds, self.store, self.edge_type[2]))
        count_walks(self.store)
        return result

    @profiled(SAMPLE)
    def sample(self, seeds: Tensor) -> PprSample:
        """Samples the neighbours of :meth:`neighbors` as one bipartite block.

        As :meth:`neighbors`, but the host waits for sizes. Each thread or stream that samples at
        the same time takes 4 bytes a node of work space on the store's device. Not collective.

        Args:
            seeds: [S] user ids, int32 or int64, on any device. Duplicates are allowed and each
                becomes a separate row; edges refer to the first row of a node.

        Raises as :meth:`neighbors` does.
        """
        targets = check_node_ids("seeds", seeds, self.store, self.edge_type[2])
        nodes, weights = self.neighbors(targets)
        col, place = (nodes >= 0).nonzero(as_tuple=True)
        unique, row = self._unique.append(targets, nodes[col, place])
        return PprSample(unique, row, col, weights[col, place], targets.numel())

    def _search(self, seeds: Tensor) -> PprNeighbors:
        store, device = self.store, store_device(self.store)
        shape = (seeds.numel(), self.num_neighbors)
        nodes = torch.empty(shape, dtype=torch.int64, device=device)
        weights = torch.empty(shape, dtype=torch.float32, device=device)
        id_map = store.id_map(self.edge_type[2])
        alpha, eps = int(self.alpha * 2.0**64), int(self.eps * 2.0**62)
        # Each push of a node moves at least this to its estimate, times its degree. All estimates
        # are at most 1, and a search reaches one node for each edge that it reads.
        least = eps * alpha >> 64
        reached = min(store.num_nodes(self.edge_type[2]), 2 + _WHOLE // least)
        _C.forward_push(
            store.csc(self.edge_type).view,
            seeds,
            nodes,
            weights,
            to_internal=id_map.internal_view,
            to_user=id_map.user_view,
            alpha=alpha,
            epsilon=eps,
            most_nodes=max(reached, 1),
            allocate=Buffers(device),
            launch=launch_on(device),
        )
        return PprNeighbors(nodes, weights)


def _check_number(name: str, value: float, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name}: expected {least:g} .. {most:g}, got {value}")
    return float(value)
