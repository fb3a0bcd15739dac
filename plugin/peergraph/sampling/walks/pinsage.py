"""PinSAGE neighbours: the nodes that random walks visit most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import Buffers, launch_on
from peergraph.profiling import SAMPLE, profiled
from peergraph.sampling.arguments import (
    MAX_STEPS,
    WALK_STREAM,
    check_int_range,
    check_node_ids,
    check_seed,
    to_fixed_point,
)
from peergraph.sampling.sample import EdgeType
from peergraph.sampling.walks.random_walker import Metapath, RandomWalker
from peergraph.sampling.walks.unique_nodes import UniqueNodes

if TYPE_CHECKING:
    from peergraph.store import Store


@dataclass
class PinSageLayer:
    """One bipartite block. Its targets are ``nodes[:num_targets]`` of the sample, its sources
    ``nodes[:num_sources]``.

    Args:
        row: [edges] int64 sources, as rows of the sample's nodes.
        col: [edges] int64 targets, ascending. The edges of a target are in descending order of
            visits; of equal visits, the source that was visited first comes first.
        visits: [edges] int32 number of visits of the walks from the target to the source.
        num_targets: number of nodes whose neighbours the layer has.
        num_sources: number of nodes found up to this layer.
    """

    row: Tensor
    col: Tensor
    visits: Tensor
    num_targets: int
    num_sources: int

    @property
    def weights(self) -> Tensor:
        """[edges] float32 visits divided by their sum over the edges of the target."""
        visits = self.visits.float()
        sums = visits.new_zeros(self.num_targets).index_add_(0, self.col, visits)
        return visits / sums[self.col]


@dataclass
class PinSageSample:
    """The result of :meth:`PinSageSampler.sample`, on the store's device.

    Args:
        nodes: [N] int64 user ids: seeds first and in order, then by first appearance.
        layers: the blocks, the one nearest to the seeds first.
    """

    nodes: Tensor
    layers: list[PinSageLayer]


class PinSageSampler:
    """Samples, for each target, the nodes that random walks from it visit most (PinSAGE; XGNN 6
    takes 5 neighbours from 4 walks of length 3), and renumbers them by first appearance.

    As DGL's PinSAGESampler: a walk follows the metapath `walk_length` times and visits the node at
    the end of each time, which may be the target itself; ties go to what was visited first; a
    layer's targets are all nodes so far. Walks follow in-neighbours, see :class:`RandomWalker`.

    The sample depends on graph, seeds, options and `seed` only. Each thread or stream that samples
    at the same time takes 4 bytes a node of work space on the store's device.

    Args:
        store: the graph; must outlive the sampler.
        edge_type: a relation between nodes of one type, or a metapath that returns to its first
            node type, such as item <- user <- item: the relations ``("user", .., "item")``,
            ``("item", .., "user")``. Default: the store's only relation.
        num_walks: walks from each target.
        walk_length: how often a walk follows the metapath.
        num_neighbors: neighbours kept of each target.
        restart_prob: probability that a walk ends before it follows the metapath again (DGL's
            termination_prob).
        num_layers: number of blocks of a sample.

    Raises:
        ValueError: an unknown relation, a metapath that does not come back, a number out of range.
        TypeError: a number of another type.
    """

    def __init__(
        self,
        store: Store,
        edge_type: EdgeType | Metapath | None = None,
        *,
        num_walks: int,
        walk_length: int,
        num_neighbors: int,
        restart_prob: float = 0.0,
        num_layers: int = 1,
    ) -> None:
        self.walker = RandomWalker(store, edge_type)
        metapath = self.walker.metapath
        if metapath[-1][0] != metapath[0][2]:
            raise ValueError(
                f"edge_type: starts at {metapath[0][2]!r} and ends at {metapath[-1][0]!r}, "
                "expected the same type"
            )
        self.store = store
        self.num_walks = check_int_range("num_walks", num_walks, 1, 2**31 - 1)
        self.walk_length = check_int_range("walk_length", walk_length, 1, MAX_STEPS - 1)
        self.num_neighbors = check_int_range("num_neighbors", num_neighbors, 1, 2**31 - 1)
        self.num_layers = check_int_range("num_layers", num_layers, 0, MAX_STEPS - 1)
        self.restart_prob = restart_prob
        self._restart_below = to_fixed_point("restart_prob", restart_prob)
        check_int_range("num_walks * walk_length", self.num_walks * self.walk_length, 1, 2**31 - 1)
        steps = self.walk_length * len(metapath)
        check_int_range("num_layers * steps of a walk", self.num_layers * steps, 0, MAX_STEPS)
        self._unique = UniqueNodes(store, metapath[0][2], "PinSageSampler")

    @profiled(SAMPLE)
    def sample(self, seeds: Tensor, seed: int) -> PinSageSample:
        """Samples the neighbours of `seeds`, then the neighbours of all nodes found, and so on.

        Runs on the store's device, on the current stream; the host waits for sizes, a few times a
        layer. Not collective.

        Args:
            seeds: [S] user ids, int32 or int64, on any device. Duplicates are allowed and each
                becomes a separate row; edges refer to the first row of a node.
            seed: the seed of the random numbers, ``0 .. 2**64 - 1``. The walks of layer 0 are those
                that `RandomWalker.walk` takes, `num_walks` from each seed in turn.

        Raises:
            IndexError: a seed that is no node, the first such.
            TypeError, ValueError: seeds or a `seed` of another kind, as for
                :meth:`NeighborSampler.sample`; a layer of more than 2**31 - 1 neighbours.
        """
        nodes = check_node_ids("seeds", seeds, self.store, self.walker.metapath[0][2])
        seed = check_seed(seed)
        layers = []
        for layer in range(self.num_layers):
            num_targets = nodes.numel()
            neighbors, visits = self._neighbors(nodes, seed, layer)
            target, place = (neighbors >= 0).nonzero(as_tuple=True)
            nodes, row = self._unique.append(nodes, neighbors[target, place])
            layers.append(
                PinSageLayer(row, target, visits[target, place], num_targets, nodes.numel())
            )
        measuring = self.store.measuring  # Another thread may end it.
        if measuring is not None:
            measuring.add_walks()
        return PinSageSample(nodes, layers)

    def _neighbors(self, targets: Tensor, seed: int, layer: int) -> tuple[Tensor, Tensor]:
        """Returns [targets, num_neighbors] user ids (-1: none) and their numbers of visits."""
        hops = len(self.walker.metapath)
        steps = self.walk_length * hops
        walks = self.walker.draw_walks(
            targets.repeat_interleave(self.num_walks),
            steps,
            seed,
            stream=WALK_STREAM + layer * steps,
            restart_below=self._restart_below,
            restart_every=hops,
        )
        ends = walks.nodes[:, hops::hops].contiguous()
        per_target = self.num_walks * self.walk_length
        shape = (targets.numel(), min(self.num_neighbors, per_target))
        neighbors = torch.empty(shape, dtype=torch.int64, device=targets.device)
        visits = torch.empty(shape, dtype=torch.int32, device=targets.device)
        _C.top_visits(
            ends,
            per_target,
            neighbors,
            visits,
            Buffers(targets.device),
            launch_on(targets.device),
        )
        return neighbors, visits
