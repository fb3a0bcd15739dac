"""K-hop neighbour sampling from a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from peergraph import _C
from peergraph.memory.device.launching import empty, launch_on
from peergraph.profiling import SAMPLE, profiled
from peergraph.sampling.arguments import check_integer_vector, check_seed
from peergraph.sampling.csc_reads import csc_rows, edge_ids_at
from peergraph.sampling.neighbor.fanouts import Fanouts, check_fanouts
from peergraph.sampling.neighbor.native_result import (
    ResultArrays,
    ResultCounts,
    draw,
    to_sample,
)
from peergraph.sampling.neighbor.options import NeighborOptions, SeedTimes, TimeWindow
from peergraph.sampling.neighbor.time_order import find_time_order
from peergraph.sampling.neighbor.workspace import WorkspacePool
from peergraph.sampling.sample import Block, EdgeType, NodeType, Sample

if TYPE_CHECKING:
    from peergraph.store import Store
    from peergraph.store.report.read_recorder import ReadRecorder

Seeds = Tensor | Mapping[NodeType, Tensor]

_NOT_PICKLED = ("native", "workspaces", "_time_order")


class SampleRequest(NamedTuple):
    """What the compiled sampler takes for a sample.

    Args:
        native: the compiled sampler.
        seeds: index of a node type, and contiguous int64 user ids on the device.
        seed: the seed of the random numbers.
        times: of the seeds.
    """

    native: _C.KHopSampler
    seeds: list[tuple[int, Tensor]]
    seed: int
    times: SeedTimes


class KHopResult(Protocol):
    """The fields that samples of any shape have; see :class:`Sample`."""

    nodes: dict[NodeType, Tensor]
    edge_ids: dict[EdgeType, Tensor] | None
    indptr: dict[EdgeType, list[Tensor]]

    def block(self, hop: int, edge_type: EdgeType | None = None) -> Block:
        """Returns the CSC block of a hop and a relation."""


Result = TypeVar("Result", bound=KHopResult)


class NeighborSampler:
    """Samples k-hop neighbourhoods, by default uniformly without replacement (WholeGraph III-C1,
    Algorithm 1), and renumbers the nodes by first appearance (append unique, III-C2).

    The sample depends on graph, seeds, options and `seed` only: not on device, placement, number of
    ranks or threads. It can be pickled, used in forked data loader workers (CPU stores), and by
    several threads and streams at once; each of them takes 4 bytes a node of work space on the
    store's device, unless `disjoint`.

    Args:
        store: the graph; must outlive the sampler.
        fanouts: neighbours per hop; a list for all relations, or a list for each of
            ``store.edge_types``, all of one length. -1: all, 0: none.
        frontier: the nodes that a hop expands: ``"new"``, the nodes that the previous hop found
            (PyG), or ``"all"``, every node so far (DGL).
        disjoint: every seed gets its own subgraph; subgraphs share no nodes.
        edge_ids: also return the user's edge ids.
        duplicate_counts: also return how often each node was sampled as a neighbour.
        index_dtype: dtype of the sample's ``row`` and ``col``: ``torch.int64`` or ``torch.int32``.
        replace: draw with replacement: every target with a neighbour gets `fanout` draws.
        weights: name of an edge table of one float32, float64 or bool column: neighbours are drawn
            in proportion to it, without replacement one after the other (Efraimidis and Spirakis
            2006). Edges of weight 0 are taken only if there are too few others. A name for all
            relations (relations without such a table draw uniformly), or names by edge type.
            The constructor checks the values once (a pass over the table; synchronises).
        skip_zero_weights: with `weights`, never take edges of weight 0, or False, also if there are
            no others; nor with `subgraph` "induced".
        node_time: name of a node table of one int32 or int64 column: only neighbours that are not
            later than the seed are sampled; equal times are. Node types without such a table are
            not filtered. The sample is `disjoint`. The constructor reads the times of all lists,
            until one is out of order (once for each table; synchronises): lists of relations that
            are in order are bisected, until times are written; others are read whole, which takes
            time in proportion to the degree. The samples are the same.
        edge_time: as `node_time`, with an edge table of the times of edges.
        time_window: admit only neighbours of the last so many units of time before the seed, both
            ends included: ``seed_time - time_window <= time <= seed_time``, exact for all int64.
            One number for all types with times, or by node type (`node_time`) or edge type
            (`edge_time`); types without a number have no lower limit.
        temporal_strategy: ``"uniform"``, or ``"last"``: the most recent neighbours; of equal times,
            those nearer to the end of the list. With `replace`: `fanout` draws among the
            `fanout` most recent neighbours (PyG). Not with `weights`.
        subgraph: ``"directional"``, the sampled edges, or ``"induced"``, all edges among the
            sampled nodes (in a disjoint sample, among the nodes of the same seed; with times,
            only those that the seed admits). An induced sample has one block, in which every node
            is a target.
        labor: layer-neighbour sampling (LABOR, Balin and Catalyurek 2023, its sequential Poisson
            form with exactly the fanout): a hop draws one random number for each source node, and
            every target takes the neighbours with the least numbers. The sample of one target has
            the usual distribution, but targets tend to take the same nodes, so that there are
            fewer nodes to gather.
        layer_dependency: with `labor`, all hops use the same numbers, for even fewer nodes.

    The edges of a target are in the order of its list with weights or labor; in the order of the
    times, then of the list, with times; in the order of the draws with `replace`.

    Raises:
        ValueError: a fanout below -1, lists of different lengths, a relation missing or unknown,
            an unknown `frontier`, `index_dtype`, `temporal_strategy` or `subgraph`, a table that
            does not exist, weights that are negative or not finite, options that exclude each
            other.
        TypeError: a fanout that is no integer, weights or times of another dtype.
    """

    def __init__(
        self,
        store: Store,
        fanouts: Fanouts,
        *,
        frontier: Literal["new", "all"] = "new",
        disjoint: bool = False,
        edge_ids: bool = True,
        duplicate_counts: bool = False,
        index_dtype: torch.dtype = torch.int64,
        replace: bool = False,
        weights: str | Mapping[EdgeType, str] | None = None,
        skip_zero_weights: bool = False,
        node_time: str | Mapping[NodeType, str] | None = None,
        edge_time: str | Mapping[EdgeType, str] | None = None,
        temporal_strategy: Literal["uniform", "last"] = "uniform",
        time_window: TimeWindow | None = None,
        subgraph: Literal["directional", "induced"] = "directional",
        labor: bool = False,
        layer_dependency: bool = False,
    ) -> None:
        if frontier not in ("new", "all"):
            raise ValueError(f"frontier: expected 'new' or 'all', got {frontier!r}")
        if index_dtype not in (torch.int32, torch.int64):
            raise ValueError(f"index_dtype: expected torch.int32 or int64, got {index_dtype}")
        if subgraph not in ("directional", "induced"):
            raise ValueError(f"subgraph: expected 'directional' or 'induced', got {subgraph!r}")
        if subgraph == "induced" and duplicate_counts:
            raise ValueError(
                "duplicate_counts: an induced subgraph keeps no sampled edges to count"
            )
        self.store = store
        self.fanouts = check_fanouts(fanouts, list(store.edge_types))
        self.frontier = frontier
        self.options = NeighborOptions(
            store,
            replace,
            weights,
            node_time,
            edge_time,
            temporal_strategy,
            time_window,
            labor,
            layer_dependency,
            skip_zero_weights,
        )
        self.disjoint = bool(disjoint) or self.options.timed
        self.edge_ids = bool(edge_ids)
        self.duplicate_counts = bool(duplicate_counts)
        self.index_dtype = index_dtype
        self.subgraph = subgraph
        self._set_up()

    def _set_up(self) -> None:
        store = self.store
        self._node_types = list(store.node_types)
        self._edge_types = list(store.edge_types)
        self.native = self._compile()
        self._time_order = find_time_order(
            store, self.options, self.native, lambda r: self._compile(in_order=r)
        )
        map_sizes = [] if self.disjoint else [store.num_nodes(t) for t in self._node_types]
        self.workspaces = WorkspacePool(
            map_sizes, torch.device(store.device), self.native.mailbox_words
        )
        store.register_scratch("node maps of a NeighborSampler", self.workspaces)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in _NOT_PICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_up()

    @property
    def num_hops(self) -> int:
        """The number of hops of a sample."""
        return len(next(iter(self.fanouts.values()), []))

    def sample(
        self,
        seeds: Seeds,
        seed: int,
        *,
        seed_time: Seeds | None = None,
        seed_start: Seeds | None = None,
    ) -> Sample:
        """Samples the neighbourhood of `seeds`.

        Runs on the store's device, on the current stream. On CUDA the host waits for the device
        once per hop (sizes), twice for hops by several relations, with fanout -1 or a very large
        one, and once for the induced subgraph. Not collective.

        Args:
            seeds: [S] user ids, int32 or int64, on any device; by node type where the store has
                several. Duplicates are allowed, and each becomes a separate row.
            seed: the seed of the random numbers, ``0 .. 2**64 - 1``.
            seed_time: with `node_time` or `edge_time`: a time for each seed, int32 or int64, by
                node type like `seeds`. Default: the times of the seeds in `node_time`.
            seed_start: likewise, the earliest time that a seed admits: neighbours have times
                ``seed_start .. seed_time``, both included, and within `time_window`. A seed with a
                start after its time has no neighbours of types with times.

        Raises:
            IndexError: a seed that is no node, the first such.
            TypeError: seeds of another dtype, or no tensor; a `seed` that is no integer.
            ValueError: seeds that are not 1-D, an unknown node type, a `seed` out of range, a hop
                of more than 2**31 - 1 edges of one relation (on CUDA, of all relations with one
                source type), or a `seed_time` or `seed_start` that is missing, not wanted or of
                another shape.
        """
        request = self.request(seeds, seed, seed_time, seed_start)

        def draw_one(native: _C.KHopSampler) -> Sample:
            return self._draw(request.native if native is self.native else native, request)

        return self.run(draw_one)

    def request(
        self, seeds: Seeds, seed: int, seed_time: Seeds | None, seed_start: Seeds | None
    ) -> SampleRequest:
        """Checks the arguments of :meth:`sample`, and returns what the compiled sampler takes."""
        seed = check_seed(seed)
        checked = self._check_seeds(seeds)
        by_type = [(self._node_types[node_type], ids) for node_type, ids in checked]
        times = SeedTimes()
        if self.options.timed or seed_time is not None or seed_start is not None:
            device = self.workspaces.device
            times = self.options.seed_times(self.store, by_type, seed_time, seed_start, device)
        order = self._time_order
        native = self.native if order is None or not order.holds() else order.native
        return SampleRequest(native, checked, seed, times)

    @profiled(SAMPLE)
    def run(self, draw: Callable[[_C.KHopSampler], Result]) -> Result:
        """Calls `draw` with the compiled sampler; counts the reads if the store measures them."""
        measuring = self.store.measuring
        return draw(self.native) if measuring is None else self._run_counted(measuring, draw)

    def _run_counted(
        self, measuring: ReadRecorder, draw: Callable[[_C.KHopSampler], Result]
    ) -> Result:
        """Does the same as :meth:`run`; counts the neighbour lists and the edge ids that the sample
        reads.
        """
        # The position of an edge in the CSC tells the tier of its id. Draws by weights or edge
        # times look up more ids than the sample has: these are not counted by position.
        by_position = self.edge_ids and not self.options.reads_edges
        native = self._compile(positions=True) if by_position else self.native
        with measuring.sampling.running():
            sample = draw(native)
        if by_position:
            assert sample.edge_ids is not None
            sample.edge_ids = {
                t: edge_ids_at(self.store, t, positions) for t, positions in sample.edge_ids.items()
            }
        measuring.add_sample()
        for edge_type, indptr in sample.indptr.items():
            if self.store.num_edges(edge_type) == 0:
                continue
            for hop in range(len(indptr)):
                if self.fanouts[edge_type][hop] == 0 and self.subgraph != "induced":
                    continue
                block = sample.block(hop, edge_type)
                end = block.first_target + block.num_targets
                targets = sample.nodes[edge_type[2]][block.first_target : end]
                rows = csc_rows(self.store, edge_type, targets)
                measuring.add_lists(edge_type, rows, block.indptr.diff().long())
        return sample

    def _compile(self, *, positions: bool = False, in_order: Sequence[int] = ()) -> _C.KHopSampler:
        """Makes the compiled sampler, which holds everything that does not depend on the seeds.

        Args:
            positions: return the positions of edges in the CSC in place of their ids.
            in_order: the relations whose lists are in the order of their times.
        """
        store = self.store
        type_index = {node_type: i for i, node_type in enumerate(self._node_types)}
        cscs = {t: store.csc(t) for t in self._edge_types}
        # The views are addresses into tensors that the store holds.
        native = _C.KHopSampler(
            node_types=[
                (
                    node_type,
                    store.num_nodes(node_type),
                    store.id_map(node_type).internal_view,
                    store.id_map(node_type).user_view,
                )
                for node_type in self._node_types
            ],
            relations=[
                (
                    type_index[edge_type[0]],
                    type_index[edge_type[2]],
                    csc.positions_view() if positions else csc.view,
                    self.fanouts[edge_type],
                    self.options.native(store, edge_type),
                )
                for edge_type, csc in cscs.items()
            ],
            expand_all=self.frontier == "all",
            disjoint=self.disjoint,
            induced=self.subgraph == "induced",
            edge_ids=self.edge_ids,
            duplicate_counts=self.duplicate_counts,
            index_bytes=self.index_dtype.itemsize,
        )
        for relation in in_order:
            native.set_in_order(relation)
        device = torch.device(store.device)
        if device.type == "cuda" and len(cscs) > 1:
            memory = empty(native.relation_bytes, torch.uint8, device)
            native.place_relations(memory, launch_on(device))
        return native

    def sample_of(self, arrays: ResultArrays, counts: ResultCounts) -> Sample:
        """Returns the sample with these arrays and counts."""
        with torch._C.DisableTorchFunction():
            return to_sample(self._node_types, self._edge_types, arrays, counts)

    def _draw(self, native: _C.KHopSampler, request: SampleRequest) -> Sample:
        device = self.workspaces.device
        arrays = ResultArrays(
            device,
            self.index_dtype,
            edge_ids=self.edge_ids,
            batch=self.disjoint,
            duplicates=self.duplicate_counts,
        )
        # A loader's thread runs in a mode of torch for random numbers, which would see each of the
        # many calls here that allocate and slice: a sixth of the host's time for a small batch.
        with torch._C.DisableTorchFunction():
            counts = draw(
                native, self.workspaces, arrays, request.seeds, request.seed, request.times
            )
        return self.sample_of(arrays, counts)

    def _check_seeds(self, seeds: Seeds) -> list[tuple[int, Tensor]]:
        """Converts seeds to (index of node type, contiguous int64 tensor on the store's device)."""
        if isinstance(seeds, Tensor):
            if len(self._node_types) != 1:
                raise ValueError(
                    f"seeds: expected a dict by node type, the store has {self._node_types}"
                )
            seeds = {self._node_types[0]: seeds}
        elif not isinstance(seeds, Mapping):
            raise TypeError(f"seeds: expected a tensor or a dict of tensors, got {type(seeds)}")
        device = self.workspaces.device
        checked = []
        for node_type, ids in seeds.items():
            if node_type not in self._node_types:
                raise ValueError(f"seeds: {node_type!r} is not one of {self._node_types}")
            vector = check_integer_vector("seeds", ids)
            # A copy to a GPU need not be waited for here, as every sample waits for the device.
            copied = vector.to(device, torch.int64, non_blocking=device.type == "cuda")
            checked.append((self._node_types.index(node_type), copied.contiguous()))
        return checked
