"""`NeighborSampler`: PyG's neighbor sampler over a store."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch_geometric.sampler
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, NegativeSampling, SamplerOutput
from torch_geometric.sampler.base import DataType, NumNeighbors, SubgraphType
from torch_geometric.sampler.neighbor_sampler import edge_sample

from peergraph import sampling
from peergraph.sampling import NodeWindows, Sample, next_seed
from peergraph.store import EDGE, NODE, EdgeType, NodeType, Store, reverse_type

from ..data.store_of import store_of
from . import batch_csc
from .arguments import (
    Times,
    check_num_neighbors,
    time_tables,
    times_for_negatives,
    weight_tables,
)
from .batch_negatives import BatchNegatives, End, drawn_in_windows
from .negative_sampling import CpuNegativeSampling, RunningSums
from .unfinished import SampleRequest, output_later
from .windows import seed_starts, starts_of

Value = TypeVar("Value")


class NeighborSampler(torch_geometric.sampler.NeighborSampler):  # type: ignore[misc]
    """``torch_geometric.sampler.NeighborSampler`` that samples from a store, on its device.

    PyG's loaders construct it for shared data, and take it as ``neighbor_sampler=``. It needs
    neither pyg-lib nor torch-sparse. PyG's own code draws negatives and makes label indices and
    metadata; :class:`peergraph.sampling.NeighborSampler` draws the neighbors (WholeGraph III-C2),
    with a seed for each batch from torch's default generator.

    Args:
        data: ``Data`` or ``HeteroData`` returned by :func:`peergraph_pyg.share`, or the pair
            returned by :func:`peergraph_pyg.stores`.
        num_neighbors: fanouts: a list with an int for each hop (-1: all), a dict of such lists by
            edge type, or a ``NumNeighbors``, whose default serves edge types that are not listed.
        subgraph_type: ``"directional"``, ``"bidirectional"``, or ``"induced"``: all edges among
            the nodes; ``num_sampled_nodes`` and ``num_sampled_edges`` are None then, as in PyG.
        replace: draw with replacement.
        disjoint: whether each seed gets a separate subgraph, and the batch a ``batch`` vector;
            always so with ``time_attr``.
        temporal_strategy: ``"uniform"`` or ``"last"``; no effect without ``time_attr``.
        time_attr: shared attribute of nodes or of edges; only nodes or edges up to the time of the
            seed are sampled, equal times included. Neighbor lists need not be sorted by time; those
            that are (``share(data, time_attr=...)`` sorts them) are bisected.
        weight_attr: shared attribute of edges, float32 or float64; edges are drawn in proportion
            to it. Works with a pair of stores too.
        is_sorted: no effect: the order of the lists is checked, never taken for granted.
        share_memory: no effect: the store is shared memory.
        directed: False stands for ``subgraph_type="induced"``.
        sample_direction: ``"backward"`` draws out-neighbours, from the store's other orientation
            (:meth:`peergraph.store.Store.reversed`), which takes a structure's memory: the first
            such sampler is made by all ranks together. Edge types, edge ids and the direction of
            the edges in a batch stay those of the graph. Not with ``time_attr``, as in PyG.
        time_window: with ``time_attr``: admit only nodes or edges of the last so many units of time
            before the seed's time; both ends are included. A number, or numbers by node type or
            edge type. PyG's loaders take it, too, for a shared graph.

    Raises:
        NotImplementedError: naming the argument, for what is not supported.
        ValueError, TypeError: what :class:`peergraph.sampling.NeighborSampler` raises, and for a
            ``time_attr`` or ``weight_attr`` that was not shared.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
        sample_direction: str = "forward",
        time_window: int | Mapping[NodeType | EdgeType, int] | None = None,
    ) -> None:
        if sample_direction not in ("forward", "backward"):
            raise ValueError(
                f"sample_direction must be 'forward' or 'backward', got {sample_direction!r}"
            )
        if temporal_strategy not in ("uniform", "last"):
            raise ValueError(
                f"temporal_strategy must be 'uniform' or 'last', got {temporal_strategy!r}"
            )
        self._core: sampling.NeighborSampler | None = None
        self._backward = sample_direction == "backward"
        if self._backward and time_attr is not None:
            raise NotImplementedError("time_attr: not with sample_direction='backward', as in PyG")
        if not directed:
            warnings.warn(
                "the argument 'directed' is deprecated; use subgraph_type='induced'", stacklevel=4
            )
            subgraph_type = "induced"
        self.subgraph_type = subgraph_type
        self.store: Store = store_of(data)
        self._sampled_store = self.store.reversed() if self._backward else self.store
        self.data_type = DataType.from_data(data)
        self.sample_direction = sample_direction
        self.temporal_strategy = temporal_strategy
        self.replace = replace
        self.keep_orig_edges = False
        self.perm = None  # PyG's code reads it: edge ids are the user's own
        self._describe(data)
        self._weights = None if weight_attr is None else weight_tables(data, weight_attr)
        self._set_times(data, time_attr)
        self.time_window = time_window

        # The user's settings of negatives, and their copy on the CPU.
        self._sums_of_weights = RunningSums()
        self.disjoint = disjoint
        self.num_neighbors = num_neighbors
        # Made now, so that wrong fanouts are reported where they are given.
        self._core = self._compile()

    def _describe(self, data: Any) -> None:
        remote = self.data_type is DataType.remote
        self._homogeneous = self.data_type is DataType.homogeneous or (
            remote and self.store.is_homogeneous
        )
        if remote and self._homogeneous and data[1].edge_types != self.store.edge_types:
            raise ValueError("data: the edges were removed from the graph store")
        if self._homogeneous:
            # PyG expresses that there are no types this way.
            self.node_types: list[Any] = [None]
            self.edge_types: list[Any] = [None]
            self.num_nodes: int | dict[NodeType, int] = self.store.num_nodes(NODE)
            return
        # The user may have deleted types since the graph was shared.
        present = data[1].edge_types if remote else data.edge_types
        self.edge_types = [key for key in self.store.edge_types if key in present]
        present = self.store.node_types if remote else data.node_types
        self.node_types = [key for key in self.store.node_types if key in present]
        self.num_nodes = {key: self.store.num_nodes(key) for key in self.node_types}

    def _set_times(self, data: Any, time_attr: str | None) -> None:
        self._node_time: dict[NodeType, str] = {}
        self._edge_time: dict[EdgeType, str] = {}
        # PyG's code reads these, and of the edges' only whether there are any.
        self.node_time: Times | None = None
        self.edge_time: dict[EdgeType, str] | None = None
        if time_attr is None:
            return
        self._node_time, self._edge_time = time_tables(data, time_attr)
        self.edge_time = self._edge_time or None
        if self._node_time:
            self.node_time = times_for_negatives(self.store, self._node_time, self._homogeneous)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets what PyG reads for each batch, with effect from the next batch.

        PyG's Lightning modules set other values for evaluation.

        Raises:
            NotImplementedError: for ``time_attr`` and ``weight_attr``.
        """
        if name in ("time_attr", "weight_attr"):
            raise NotImplementedError(
                f"{name} of a sampler cannot be changed; make another sampler"
            )
        if name in ("replace", "subgraph_type", "temporal_strategy", "time_window"):
            self._core = None
            value = SubgraphType(value) if name == "subgraph_type" else value
        super().__setattr__(name, value)

    @property
    def num_neighbors(self) -> NumNeighbors:
        """The fanouts; assigning new ones takes effect with the next batch."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, num_neighbors: Any) -> None:
        self._num_neighbors = check_num_neighbors(num_neighbors)
        self._core = None

    @property
    def disjoint(self) -> bool:
        """Whether each seed gets a separate subgraph."""
        return bool(self._disjoint or self.is_temporal)

    @disjoint.setter
    def disjoint(self, disjoint: bool) -> None:
        self._disjoint = disjoint
        self._core = None

    def _compile(self) -> sampling.NeighborSampler:
        if self._homogeneous:
            fanouts = self._num_neighbors.get_values()
            if isinstance(fanouts, dict):
                raise ValueError("num_neighbors must be a list of ints for a homogeneous graph")
        else:
            fanouts = dict(self._num_neighbors.get_values(self.edge_types))
            hops = self._num_neighbors.num_hops
            for edge_type in self.store.edge_types:
                fanouts.setdefault(edge_type, [0] * hops)
            fanouts = {self.sampled_edge_type(t): values for t, values in fanouts.items()}
        weights = {self.sampled_edge_type(t): name for t, name in (self._weights or {}).items()}
        last = self.is_temporal and self.temporal_strategy == "last"
        return sampling.NeighborSampler(
            self._sampled_store,
            fanouts,
            disjoint=self._disjoint,
            replace=self.replace,
            weights=weights or None,
            node_time=self._node_time or None,
            edge_time=self._edge_time or None,
            temporal_strategy="last" if last else "uniform",
            time_window=self.time_window,
            subgraph="induced" if self.subgraph_type is SubgraphType.induced else "directional",
        )

    def sampled_edge_type(self, edge_type: EdgeType) -> EdgeType:
        """Returns the edge type of the sampled store for an edge type of the graph."""
        return reverse_type(edge_type) if self._backward else edge_type

    def _sample(
        self,
        seed: Tensor | dict[NodeType, Tensor],
        seed_time: Any = None,
        **kwargs: Any,
    ) -> SamplerOutput | HeteroSamplerOutput:
        if kwargs:
            names = ", ".join(kwargs)
            raise NotImplementedError(f"sampling by {names} is not supported for a shared graph")
        if seed_time is None and self.is_temporal:
            self._check_seed_times(seed)
        number = next_seed()
        if self.subgraph_type is not SubgraphType.bidirectional:  # which needs the edges at once
            later = output_later(lambda: SampleRequest(self, seed, number, seed_time))
            if later is not None:
                return later
        return self.draw(seed, number, seed_time)

    @property
    def core(self) -> sampling.NeighborSampler:
        """The core's sampler with the present settings; another one after they were changed."""
        core = self._core  # another thread may set new fanouts meanwhile
        if core is None:
            core = self._core = self._compile()
        return core

    def draw(
        self, nodes: Tensor | dict[NodeType, Tensor], seed: int, seed_time: Any = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Samples the neighbourhood of `nodes` by a given seed of the random numbers."""
        core = self.core
        sample = core.sample(nodes, seed, seed_time=seed_time, seed_start=seed_starts(nodes))
        return self.finished(sample, core)

    def finished(
        self, sample: Sample, core: sampling.NeighborSampler
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Returns what PyG's loaders take of a sample of the core's sampler."""
        induced = core.subgraph == "induced"
        if self._backward:
            sample = _reverse_edges(sample)
        # Induced samples have no edges of a hop, and backward ones are grouped by source.
        has_structures = not induced and not self._backward
        edges = None
        if not self._homogeneous and sample.arrays is not None:
            edges = batch_csc.SampledEdges(sample, self.edge_types, has_structures, core.fanouts)
        elif has_structures:
            batch_csc.cache_csc(sample)
        out = self.output_of(sample, edges)
        if induced:
            out.num_sampled_nodes = out.num_sampled_edges = None
        return out

    def _check_seed_times(self, seed: Tensor | dict[NodeType, Tensor]) -> None:
        for node_type in seed if isinstance(seed, dict) else [NODE]:
            if node_type not in self._node_time:
                raise ValueError(
                    f"input_time, edge_label_time: needed, as seeds of type {node_type!r} have no "
                    "time_attr of their own"
                )

    def sample_from_nodes(self, inputs: Any) -> SamplerOutput | HeteroSamplerOutput:
        """As PyG's; the loader may give each seed a time at which its window begins."""
        with starts_of(inputs):
            return super().sample_from_nodes(inputs)

    def sample_from_edges(
        self, inputs: Any, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Samples as PyG's method does. The weights of negatives may be shared data, may lie on a
        GPU, and may have more than 2^24 values. Negatives are in their positives' windows of time.
        """
        negatives = self._negatives_on_cpu(neg_sampling, inputs.input_type)
        with starts_of(inputs, one_source=negatives is not None and negatives.is_triplet()):
            drawn = self._drawn_negatives(inputs, negatives)
            if drawn is None:
                return super().sample_from_edges(inputs, neg_sampling=negatives)
            # Without times of nodes, for which PyG's code would draw again.
            out = edge_sample(inputs, self._sample, self.num_nodes, self.disjoint, None, drawn)
        return out.to_bidirectional() if self.subgraph_type is SubgraphType.bidirectional else out

    def _drawn_negatives(
        self, inputs: Any, negatives: NegativeSampling | None
    ) -> NegativeSampling | None:
        """Returns the negatives of a batch; None: PyG's code draws them."""
        ends = (inputs.input_type or EDGE)[::2]
        has_starts, limits = hasattr(inputs, "start"), self.core.options.time_window
        in_windows = any(t in self._node_time and (has_starts or t in limits) for t in ends)
        if negatives is None or not (in_windows or isinstance(negatives, BatchNegatives)):
            return None
        sources, destinations = (End(self._size(t), self._windows(t, inputs)) for t in ends)
        if isinstance(negatives, BatchNegatives):
            return negatives.of_batch(inputs, destinations, disjoint=self.disjoint)
        return drawn_in_windows(negatives, len(inputs.row), sources, destinations)

    def _windows(self, node_type: NodeType, inputs: Any) -> NodeWindows | None:
        """Returns the windows of a batch's positives for nodes of a type; None: all nodes."""
        if node_type not in self._node_time:
            return None
        if inputs.time is None:
            raise ValueError("edge_label_time: needed, for negatives of nodes with time_attr")
        latest, earliest = inputs.time.cpu().long(), getattr(inputs, "start", None)
        length = self.core.options.time_window.get(node_type)
        if length is not None:
            begin = latest.clamp(min=torch.iinfo(torch.int64).min + length) - length
            earliest = begin if earliest is None else begin.maximum(earliest)
        return NodeWindows(self.store, node_type, self._node_time[node_type], latest, earliest)

    def _size(self, node_type: NodeType) -> int:
        return self.num_nodes if isinstance(self.num_nodes, int) else self.num_nodes[node_type]

    def _negatives_on_cpu(
        self, sampling: NegativeSampling | None, edge_type: EdgeType | None
    ) -> NegativeSampling | None:
        if type(sampling) is not NegativeSampling:  # None, or a subclass, which draws by itself
            return sampling
        source, _, destination = edge_type or EDGE
        sizes = self._size(source), self._size(destination)
        return CpuNegativeSampling(sampling, sizes, self._sums_of_weights)

    def output_of(
        self, sample: Sample, edges: batch_csc.SampledEdges | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Returns a sample as PyG's loaders take it; its edges may be made already."""
        if self._homogeneous:
            return _homogeneous_output(sample)
        if edges is None:
            row, col = (_select(ends, self.edge_types) for ends in (sample.row, sample.col))
        else:
            row, col = edges.row_and_col()
        return HeteroSamplerOutput(
            node=_select(sample.nodes, self.node_types),
            row=row,
            col=col,
            edge=_select(sample.edge_ids or {}, self.edge_types),
            batch=None if sample.batch is None else _select(sample.batch, self.node_types),
            num_sampled_nodes=_select(sample.num_sampled_nodes, self.node_types),
            num_sampled_edges=_select(sample.num_sampled_edges, self.edge_types),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_core": None, "_sums_of_weights": RunningSums()}


def _homogeneous_output(sample: Sample) -> SamplerOutput:
    """Returns a sample without types as PyG's loaders take it."""
    return SamplerOutput(
        node=sample.nodes[NODE],
        row=sample.row[EDGE],
        col=sample.col[EDGE],
        edge=None if sample.edge_ids is None else sample.edge_ids[EDGE],
        batch=None if sample.batch is None else sample.batch[NODE],
        num_sampled_nodes=sample.num_sampled_nodes[NODE],
        num_sampled_edges=sample.num_sampled_edges[EDGE],
    )


def _reverse_edges(sample: Sample) -> Sample:
    """Turns a sample of the reversed store into one with the graph's edge directions."""

    def by_type(values: dict[EdgeType, Value]) -> dict[EdgeType, Value]:
        return {reverse_type(edge_type): value for edge_type, value in values.items()}

    return replace(
        sample,
        row=by_type(sample.col),
        col=by_type(sample.row),
        edge_ids=None if sample.edge_ids is None else by_type(sample.edge_ids),
        num_sampled_edges=by_type(sample.num_sampled_edges),
    )


def _select(values: dict[Any, Any], types: list[Any]) -> dict[Any, Any]:
    return {key: values[key] for key in types if key in values}
