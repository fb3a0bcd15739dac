"""PinSAGE neighbours: the nodes that random walks visit most."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.profiling import SAMPLE, profiled
from peergraph.sampling.arguments import (
    MAX_STEPS,
    WALK_STREAM,
    check_int_range,
    check_integer_vector,
    check_seed,
    to_fixed_point,
)
from peergraph.sampling.neighbor.native_result import ResultArrays, ResultCounts, cut, draw
from peergraph.sampling.neighbor.options import SeedTimes
from peergraph.sampling.neighbor.workspace import WorkspacePool
from peergraph.sampling.sample import EdgeType
from peergraph.sampling.walks.random_walker import Metapath, RandomWalker

if TYPE_CHECKING:
    from peergraph.store import Store


_MOST_LAYERS = 1 << 16


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
        self.num_layers = check_int_range("num_layers", num_layers, 0, _MOST_LAYERS)
        self.restart_prob = restart_prob
        self._restart_below = to_fixed_point("restart_prob", restart_prob)
        check_int_range("num_walks * walk_length", self.num_walks * self.walk_length, 1, 2**31 - 1)
        self._steps = self.walk_length * len(metapath)
        check_int_range("num_layers * steps of a walk", self.num_layers * self._steps, 0, MAX_STEPS)
        self._set_up()

    def _set_up(self) -> None:
        store, metapath = self.store, self.walker.metapath
        node_type = metapath[0][2]
        num_nodes, id_map = store.num_nodes(node_type), store.id_map(node_type)
        # The views are addresses into tensors that the store holds.
        self._native = _C.KHopSampler.of_walks(
            node_type=(node_type, num_nodes, id_map.internal_view, id_map.user_view),
            metapath=[store.csc(edge_type).view for edge_type in metapath],
            num_walks=self.num_walks,
            walk_length=self.walk_length,
            num_neighbors=self.num_neighbors,
            num_layers=self.num_layers,
            restart_below=self._restart_below,
            stream=WALK_STREAM,
        )
        self._workspaces = WorkspacePool(
            [num_nodes], torch.device(store.device), self._native.mailbox_words
        )
        store.register_scratch("node maps of a PinSageSampler", self._workspaces)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_native", "_workspaces")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_up()

    @profiled(SAMPLE)
    def sample(self, seeds: Tensor, seed: int) -> PinSageSample:
        """Samples the neighbours of `seeds`, then the neighbours of all nodes found, and so on.

        Runs on the store's device, on the current stream; on a GPU the host waits for sizes once a
        layer. Not collective.

        Args:
            seeds: [S] user ids, int32 or int64, on any device. Duplicates are allowed and each
                becomes a separate row; edges refer to the first row of a node.
            seed: the seed of the random numbers, ``0 .. 2**64 - 1``. The walks of layer 0 are those
                that `RandomWalker.walk` takes, `num_walks` from each seed in turn.

        Raises:
            IndexError: a seed that is no node, the first such.
            TypeError, ValueError: seeds or a `seed` of another kind, as for
                :meth:`NeighborSampler.sample`; a layer with room for more than 2**31 - 1
                neighbours.
        """
        seeds = check_integer_vector("seeds", seeds)
        seed = check_seed(seed)
        device = self._workspaces.device
        # A copy to a GPU need not be waited for here, as every sample waits for the device.
        nodes = seeds.to(device, torch.int64, non_blocking=device.type == "cuda").contiguous()
        arrays = ResultArrays(device, torch.int64, edge_ids=True, batch=False, duplicates=False)
        with torch._C.DisableTorchFunction():
            counts = draw(self._native, self._workspaces, arrays, [(0, nodes)], seed, SeedTimes())
            sample = _to_sample(counts, arrays)
        measuring = self.store.measuring  # Another thread may end it.
        if measuring is not None:
            self._count_reads(sample, seed)
            measuring.add_walks()
        return sample

    def _count_reads(self, sample: PinSageSample, seed: int) -> None:
        """Takes the walks again, by the walker, which counts the lists that they read."""
        for number, layer in enumerate(sample.layers):
            self.walker.draw_walks(
                sample.nodes[: layer.num_targets].repeat_interleave(self.num_walks),
                self._steps,
                seed,
                stream=WALK_STREAM + number * self._steps,
                restart_below=self._restart_below,
                restart_every=len(self.walker.metapath),
            )


def _to_sample(counts: ResultCounts, arrays: ResultArrays) -> PinSageSample:
    (num_edges,), (num_targets,), (num_nodes,) = (
        counts.num_edges,
        counts.num_targets,
        counts.num_nodes,
    )
    assert arrays.edge_ids is not None
    edges = sum(num_edges)
    rows, cols, visits = (
        cut(values, num_edges) if num_edges else []
        for values in (*cut(arrays.edge_index, [edges, edges]), arrays.edge_ids.int())
    )
    ends = accumulate(num_nodes)
    next(ends)  # of the seeds
    return PinSageSample(
        arrays.nodes,
        [PinSageLayer(*layer) for layer in zip(rows, cols, visits, num_targets, ends, strict=True)],
    )
