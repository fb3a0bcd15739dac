"""K-hop sampling into arrays of a static shape, without waiting for the device."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.capture_mode import is_capturing
from peergraph.memory.device.launching import Buffers, empty, launch_on
from peergraph.memory.device.pending_errors import raise_pending
from peergraph.memory.table.id_list import integers
from peergraph.profiling import SAMPLE, profiled
from peergraph.sampling.arguments import check_seed, store_device
from peergraph.sampling.neighbor.native_result import ResultCounts, by_type, cut
from peergraph.sampling.neighbor.neighbor_sampler import NeighborSampler
from peergraph.sampling.sample import EdgeType, NodeType
from peergraph.sampling.static_shape.bounds import MaxEdges, MaxNodes, make_shape
from peergraph.sampling.static_shape.exclusion import exclude_static
from peergraph.sampling.static_shape.padding import (
    Padding,
    check_capacity,
    with_clamped_counts,
)
from peergraph.sampling.static_shape.static_shape_sample import StaticShape, StaticShapeSample


class StaticShapeSampler:
    """Draws the samples of a :class:`NeighborSampler` into arrays of a static shape, so that a CUDA
    graph can capture the sampling.

    The arrays are padded, see :class:`StaticShapeSample`; counters on the device say how much of
    them is used. On CUDA no call waits for the device. A CUDA graph can capture a call after one
    call outside of a capture. A replay reads the seeds, their number, their times and the seed of
    the random numbers from the memory where they were at the capture; it does not see the arguments
    of Python again. All calls and graphs of one sampler share a work space of 4 bytes a node
    (unless disjoint): run them one after the other on one stream, or make a sampler for each.
    Several threads may call it.

    Args:
        sampler: the options of the samples, and their store.
        num_seeds: capacity for seeds; by node type where the store has several.
        max_nodes: capacity for the new nodes of each hop, by node type where the store has several.
            Default: as many as there can be, which is a lot for several hops;
            :func:`sample_bounds` finds smaller bounds from samples.
        max_edges: capacity for the edges of each hop, by edge type where the store has several.
            Default: as many as there can be. Needed for fanouts of -1.
        reports_overflow: False: a sample that exceeds a capacity raises nothing. One of its counts
            then equals the capacity, and its contents are undefined.
        valid_padding: True: the ids of padding are valid, so that attributes can be read by all
            ids: nodes have the id of the first seed of their type, edges 0, and so have nodes of a
            type without seeds. By default they are -1.

    Attributes:
        shape: the capacities.

    Raises:
        ValueError: bounds that are negative, missing, of an unknown type, or of more than
            2**31 - 2 rows or edges of a hop.
        NotImplementedError: the sampler's `subgraph` is "induced".
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        num_seeds: int | Mapping[NodeType, int],
        *,
        max_nodes: MaxNodes | None = None,
        max_edges: MaxEdges | None = None,
        reports_overflow: bool = True,
        valid_padding: bool = False,
    ) -> None:
        if sampler.subgraph == "induced":
            raise NotImplementedError("subgraph='induced' is not supported in a static shape")
        shape = make_shape(sampler, num_seeds, max_nodes, max_edges)
        self._sampler = sampler
        self._reports_overflow = reports_overflow
        self._valid_padding = valid_padding
        self.shape = shape
        self._device = store_device(sampler.store)
        self._num_seeds = {t: shape.padding_row(t) for t in shape.rows_per_hop}
        self._maps: list[Tensor] = []
        # The kernels of two threads' samples must not mix on the stream: they share the work space.
        self._one_at_a_time = threading.Lock()
        if self._device.type == "cuda":
            # Allocates memory for errors and the node maps now: a capture must not.
            raise_pending(self._device)
            for node_type in [] if sampler.disjoint else self._types:
                # The word behind the map is the base of the last sample's words.
                words = sampler.store.num_nodes(node_type) + 1
                self._maps.append(empty(words, torch.int32, self._device).fill_(-1))
            # The first sample may be on another stream.
            torch.cuda.current_stream(self._device).synchronize()
        sampler.store.register_scratch("node maps of a StaticShapeSampler", self)

    @property
    def num_bytes(self) -> int:
        """Bytes of the work space on the store's device."""
        return sum(m.nbytes for m in self._maps)

    @property
    def _types(self) -> list[NodeType]:
        return list(self.shape.rows_per_hop)

    @profiled(SAMPLE)
    def sample(
        self,
        seeds: Tensor | Mapping[NodeType, Tensor],
        seed: int | Tensor,
        *,
        num_seeds: Tensor | Mapping[NodeType, Tensor] | None = None,
        seed_time: Tensor | Mapping[NodeType, Tensor] | None = None,
        seed_start: Tensor | Mapping[NodeType, Tensor] | None = None,
        exclude: Mapping[EdgeType, Tensor] | None = None,
    ) -> StaticShapeSample:
        """Samples the neighbourhood of `seeds`, as :meth:`NeighborSampler.sample` would.

        Runs on the store's device, on the current stream. Does not synchronise. Not collective.

        Args:
            seeds: [num_seeds] user ids, int32 or int64, on the store's device, as many as the
                capacity for seeds; by node type where the store has several.
            seed: the seed of the random numbers, ``0 .. 2**64 - 1``; or a tensor of one int64 (its
                bits) on the store's device.
            num_seeds: the number of seeds that are used, a tensor of one int64 on the store's
                device, by node type like `seeds`; the others are padding. Default: all.
            seed_time, seed_start: as for :meth:`NeighborSampler.sample`, on the store's device.
            exclude: by edge type, edges that are removed from the sample as :func:`exclude_edges`
                removes them: int64 ids on the store's device, or, unless disjoint, pairs [2, any
                number] of positions among the seeds, as sources and destinations; of equal seeds,
                that of the first.

        Raises:
            OverflowError: the sample has more nodes or edges than the capacity, and the sampler
                reports it.
            IndexError: a seed that is no node, or a `num_seeds` out of range.
            TypeError, ValueError: an argument is not as above.

        On a GPU the first two are found while the kernels run, and the sample's contents are then
        undefined; a later call of peergraph on that device raises, or
        :func:`peergraph.synchronize`.
        """
        by_type = self._by_type("seeds", seeds)
        by_type = {
            t: integers(ids) if isinstance(ids, Tensor) else ids for t, ids in by_type.items()
        }
        for node_type, ids in by_type.items():
            self._check(f"seeds of type {node_type!r}", ids, (torch.int32, torch.int64))
            if tuple(ids.shape) != (self._num_seeds[node_type],):
                raise ValueError(
                    f"seeds: expected shape ({self._num_seeds[node_type]},) for {node_type!r}, "
                    f"got {tuple(ids.shape)}"
                )
        by_type = {t: ids.long().contiguous() for t, ids in by_type.items()}
        counts = {} if num_seeds is None else self._by_type("num_seeds", num_seeds)
        for node_type, count in counts.items():
            if node_type not in by_type:
                raise ValueError(f"num_seeds: there are no seeds of type {node_type!r}")
            self._check_word("num_seeds", count)
        if isinstance(seed, Tensor):
            self._check_word("seed", seed)
        else:
            seed = check_seed(seed)
        for edge_type, edges in (exclude or {}).items():
            self._check_exclude(edge_type, edges)
        draw = self._on_cpu if self._device.type == "cpu" else self._on_gpu
        sample = draw(by_type, seed, counts, seed_time, seed_start)
        if not exclude:
            return sample
        return exclude_static(sample, exclude, 0 if self._valid_padding else -1)

    def _by_type(
        self, name: str, values: Tensor | Mapping[NodeType, Tensor]
    ) -> dict[NodeType, Tensor]:
        if isinstance(values, Mapping):
            unknown = [t for t in values if t not in self._num_seeds]
            if unknown:
                raise ValueError(f"{name}: {unknown[0]!r} is not one of {self._types}")
            return dict(values)
        if len(self._types) != 1:
            raise ValueError(f"{name}: expected a dict by node type, the store has {self._types}")
        return {self._types[0]: values}

    def _check(self, name: str, value: object, dtypes: Sequence[torch.dtype]) -> None:
        if not isinstance(value, Tensor) or value.dtype not in dtypes:
            got = value.dtype if isinstance(value, Tensor) else type(value)
            raise TypeError(f"{name}: expected a tensor of {list(dtypes)}, got {got}")
        if value.device != self._device:
            raise ValueError(f"{name}: expected it on {self._device}, got {value.device}")

    def _check_exclude(self, edge_type: EdgeType, edges: Tensor) -> None:
        name = f"exclude of type {edge_type!r}"
        if edge_type not in self.shape.edges_per_hop:
            raise ValueError(f"{name}: there are no such edges")
        self._check(name, edges, (torch.int64,))
        has_ids = edges.dim() == 1
        if not has_ids and (edges.dim() != 2 or edges.shape[0] != 2):
            raise ValueError(f"{name}: expected ids, or pairs [2, any number], got {edges.shape}")
        if has_ids and not self._sampler.edge_ids:
            raise ValueError(f"{name}: the sample has no ids of edges")
        if not has_ids and self._sampler.disjoint:
            raise ValueError(f"{name}: pairs are not supported in disjoint samples")

    def _check_word(self, name: str, value: object) -> None:
        self._check(name, value, (torch.int64,))
        assert isinstance(value, Tensor)
        if value.numel() != 1:
            raise ValueError(f"{name}: expected one number, got shape {tuple(value.shape)}")

    def _on_cpu(
        self,
        seeds: dict[NodeType, Tensor],
        seed: int | Tensor,
        counts: dict[NodeType, Tensor],
        seed_time: Tensor | Mapping[NodeType, Tensor] | None,
        seed_start: Tensor | Mapping[NodeType, Tensor] | None,
    ) -> StaticShapeSample:
        used, first_seeds, place, before = {}, [], 0, 0
        for node_type, ids in seeds.items():
            capacity = ids.numel()
            count = int(counts[node_type]) if node_type in counts else capacity
            if not 0 <= count <= capacity:
                raise IndexError(f"num_seeds: expected 0 .. {capacity}, got {count}")
            used[node_type] = ids[:count]
            first_seeds.append((place, before))
            place, before = place + capacity, before + count
        times = {
            name: {
                t: x[: used[t].numel()] if t in used else x
                for t, x in self._by_type(name, of_types).items()
            }
            for name, of_types in (("seed_time", seed_time), ("seed_start", seed_start))
            if of_types is not None
        }
        number = int(seed) % 2**64
        sample = self._sampler.sample(used, number, **times)
        expand_all, valid = self._sampler.frontier == "all", self._valid_padding
        try:
            check_capacity(sample, self.shape)
        except OverflowError:
            if self._reports_overflow:
                raise
            none = {t: ids[:0] for t, ids in used.items()}
            no_times = {name: {t: x[:0] for t, x in of.items()} for name, of in times.items()}
            empty = self._sampler.sample(none, number, **no_times)
            padded = Padding(empty, self.shape, expand_all, first_seeds, valid).pad()
            return with_clamped_counts(padded, sample)
        return Padding(sample, self.shape, expand_all, first_seeds, valid).pad()

    def _on_gpu(
        self,
        seeds: dict[NodeType, Tensor],
        seed: int | Tensor,
        counts: dict[NodeType, Tensor],
        seed_time: Tensor | Mapping[NodeType, Tensor] | None,
        seed_start: Tensor | Mapping[NodeType, Tensor] | None,
    ) -> StaticShapeSample:
        raise_pending(self._device)
        sampler, shape = self._sampler, self.shape
        times = sampler.options.seed_times(
            sampler.store, list(seeds.items()), seed_time, seed_start, self._device
        )

        def draw(native: _C.KHopSampler) -> StaticShapeSample:
            buffers = Buffers(self._device)
            with self._one_at_a_time:
                result = native.sample_static_shape(
                    [(self._types.index(t), ids, counts.get(t)) for t, ids in seeds.items()],
                    0 if isinstance(seed, Tensor) else seed,
                    seed if isinstance(seed, Tensor) else None,
                    times.latest,
                    times.earliest,
                    self._maps,
                    [rows[1:] for rows in shape.rows_per_hop.values()],
                    list(shape.edges_per_hop.values()),
                    self._reports_overflow,
                    self._valid_padding,
                    buffers,
                    launch_on(self._device),
                )
            return _to_sample(sampler, shape, buffers, result)

        return draw(sampler.native) if is_capturing(self._device) else sampler.run(draw)


def _to_sample(
    sampler: NeighborSampler,
    shape: StaticShape,
    buffers: Buffers,
    result: tuple[Any, ...],
) -> StaticShapeSample:
    """Makes a sample of what the compiled module returns: addresses of arrays, then counts."""
    nodes, batch, duplicates, edge_index, edge_ids, offsets, *of_hops, count_address = result
    counts = ResultCounts(*of_hops)
    rows, edges = shape.rows_per_hop, shape.edges_per_hop
    num_rows = [sum(of_type) for of_type in rows.values()]
    num_edges = [sum(of_type) for of_type in edges.values()]

    def of_nodes(address: int, dtype: torch.dtype) -> dict[NodeType, Tensor]:
        return by_type(rows, buffers.tensor(address, dtype, sum(num_rows)), num_rows)

    all_ends = buffers.tensor(edge_index, sampler.index_dtype, 2 * sum(num_edges))
    ends = by_type(edges, all_ends, [2 * count for count in num_edges])
    lengths = [len(r) for r in rows.values()] + [len(e) for e in edges.values()]
    of_types = torch.split(buffers.tensor(count_address, torch.int64, sum(lengths)), lengths)
    num_edges_by_type = dict(zip(edges, of_types[len(rows) :], strict=True))
    by_hop = []
    for hop, address in enumerate(offsets):
        sizes = [of_type[hop] + 1 for of_type in counts.num_targets]
        by_hop.append(cut(buffers.tensor(address, torch.int64, sum(sizes)), sizes))
    return StaticShapeSample(
        nodes=of_nodes(nodes, torch.int64),
        edge_index={t: both.view(2, both.numel() // 2) for t, both in ends.items()},
        edge_ids=by_type(edges, buffers.tensor(edge_ids, torch.int64, sum(num_edges)), num_edges)
        if sampler.edge_ids
        else None,
        batch=of_nodes(batch, torch.int64) if sampler.disjoint else None,
        duplicate_counts=of_nodes(duplicates, torch.int32) if sampler.duplicate_counts else None,
        num_nodes=dict(zip(rows, of_types, strict=False)),
        num_edges=num_edges_by_type,
        num_drawn_edges=num_edges_by_type,
        shape=shape,
        indptr={t: [of_hop[r] for of_hop in by_hop] for r, t in enumerate(edges)},
        first_target=dict(zip(edges, counts.first_target, strict=True)),
    )
