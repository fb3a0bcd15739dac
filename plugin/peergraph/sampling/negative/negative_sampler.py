"""Negative edges for link prediction."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import launch_on
from peergraph.memory.region.free_memory import check_count
from peergraph.profiling import SAMPLE, profiled
from peergraph.sampling.arguments import (
    NEGATIVE_STREAM,
    check_edge_type,
    check_int_range,
    check_node_ids,
    check_seed,
    store_device,
)
from peergraph.sampling.negative.node_distribution import NodeDistribution, check_times
from peergraph.sampling.sample import EdgeType

if TYPE_CHECKING:
    from peergraph.store import Store


class Negatives(NamedTuple):
    """The result of :meth:`NegativeSampler.sample`, on the store's device.

    Args:
        source: int64 user ids: binary [num_negatives]; triplet [positives, amount], the positives'
            sources repeated.
        destination: int64 user ids of the same shape.
        is_edge: bool of the same shape: whether the pair is an existing edge, because all tries
            gave edges; None unless existing edges are avoided.
    """

    source: Tensor
    destination: Tensor
    is_edge: Tensor | None


class NegativeSampler:
    """Draws negative edges, with the meaning of PyG's ``NegativeSampling``.

    The negatives depend on graph, positives, options and `seed` only, not on device, placement,
    number of ranks or threads; `peergraph.reference.walks` is the specification.

    Args:
        store: the graph; must outlive the sampler.
        edge_type: the relation. Default: the store's only one.
        mode: ``"binary"``, pairs of a random source and a random destination, or ``"triplet"``,
            random destinations for each positive's source.
        amount: negatives per positive; an integer for triplets.
        src_weight: [sources] weights of the sources, of any float or integer dtype; None: uniform.
        dst_weight: the same for destinations, or ``"degree"``: the in-degree of the relation.
        avoid_edges: draw again where a negative is an edge of the relation, up to `tries` times.
            A try reads the in-neighbours of the destination (a linear search, as lists have the
            user's order; on a GPU by a warp).
        src_time, dst_time: [nodes] int32 or int64 times of the sources and the destinations: a
            negative takes only nodes that are no later than its positive. Later nodes are drawn
            again, like edges; after the last try the earliest node is taken (as in PyG),
            whatever its time. Triplets draw no sources, so they use `dst_time` only.
        tries: the largest number of draws of a negative. If the last draw is an edge too, it is
            kept and marked.

    Reads weights, times and, for ``"degree"``, the in-degrees at construction, and synchronises
    then: tensors that are changed later have no effect.

    Raises:
        ValueError: an unknown relation or option, a number out of range, weights or times of
            another length, weights that are negative, not finite or all 0.
        TypeError: a number, weights or times of another type.
        NotImplementedError: ``src_weight="degree"``: the store knows in-degrees only.
    """

    def __init__(
        self,
        store: Store,
        edge_type: EdgeType | None = None,
        *,
        mode: Literal["binary", "triplet"] = "binary",
        amount: float = 1,
        src_weight: Tensor | None = None,
        dst_weight: Tensor | Literal["degree"] | None = None,
        src_time: Tensor | None = None,
        dst_time: Tensor | None = None,
        avoid_edges: bool = False,
        tries: int = 16,
    ) -> None:
        if mode not in ("binary", "triplet"):
            raise ValueError(f"mode: expected 'binary' or 'triplet', got {mode!r}")
        if edge_type is None and len(store.edge_types) == 1:
            edge_type = store.edge_types[0]
        if edge_type is None:
            raise ValueError(f"edge_type: one of {list(store.edge_types)} is needed")
        if isinstance(src_weight, str) and src_weight == "degree":
            raise NotImplementedError(
                "src_weight: 'degree' is not supported, the store knows in-degrees; pass a tensor"
            )
        if isinstance(dst_weight, str) and dst_weight == "degree":
            dst_weight = store.in_degree(check_edge_type("edge_type", store, edge_type))
        self.store = store
        self.edge_type = check_edge_type("edge_type", store, edge_type)
        self.mode = mode
        self.amount = check_amount(amount, mode)
        self.avoid_edges = bool(avoid_edges)
        self.tries = check_int_range("tries", tries, 1, 2**30)
        self._source = NodeDistribution.from_options(
            "src", src_weight, src_time, store, edge_type[0]
        )
        self._destination = NodeDistribution.from_options(
            "dst", dst_weight, dst_time, store, edge_type[2]
        )

    @profiled(SAMPLE)
    def sample(self, sources: Tensor | int, seed: int, *, time: Tensor | None = None) -> Negatives:
        """Draws negatives for a batch of positives.

        Runs on the store's device, on the current stream; waits for the device only where
        `sources` are on a GPU (to check them) or in pinned memory. Not collective.

        Args:
            sources: [P] user ids of the positives' sources, int32 or int64, on any device; for
                binary negatives their number suffices.
            seed: the seed of the random numbers, ``0 .. 2**64 - 1``.
            time: [P] int32 or int64 times of the positives, where nodes have times. Of binary
                negatives the i-th belongs to positive ``i % P``.

        Returns:
            ``ceil(P * amount)`` binary negatives, or [P, amount] triplets.

        Raises:
            IndexError: a source that is no node, the first such.
            TypeError: sources or times of another dtype, or a number where triplets need the
                sources.
            ValueError: sources that are not 1-D, a `seed` out of range, no node to draw, or `time`
                missing, of another length, or given though no node has a time.
        """
        seed = check_seed(seed)
        device = store_device(self.store)
        source_type = self.edge_type[0]
        if self.mode == "triplet":
            positives = check_node_ids("sources", sources, self.store, source_type)
            shape: tuple[int, ...] = (positives.numel(), int(self.amount))
            source = positives[:, None].expand(shape).contiguous()
            latest = self._latest(time, positives.numel())
            if latest is not None:
                latest = latest[:, None].expand(shape).contiguous()
        else:
            if isinstance(sources, Tensor):
                sources = check_node_ids("sources", sources, self.store, source_type).numel()
            count = check_int_range("sources", sources, 0, 2**62)
            check_count("sources", math.ceil(count * self.amount), device)
            source = torch.empty(math.ceil(count * self.amount), dtype=torch.int64, device=device)
            latest = self._latest(time, count)
            if latest is not None:
                latest = latest.repeat(math.ceil(self.amount))[: source.numel()].contiguous()
        destination = torch.empty_like(source)
        is_edge = torch.empty_like(source, dtype=torch.bool) if self.avoid_edges else None
        self._draw(source, destination, latest, is_edge, seed)
        return Negatives(source, destination, is_edge)

    def _latest(self, time: Tensor | None, count: int) -> Tensor | None:
        """Returns the times of the positives on the store's device."""
        timed = self._source.times is not None or self._destination.times is not None
        if timed != (time is not None):
            raise ValueError(
                "time: expected the positives' times, as src_time or dst_time is given"
                if timed
                else "time: needs src_time or dst_time"
            )
        times = check_times("time", time, count, "positive")
        return None if times is None else times.to(store_device(self.store))

    def _draw(
        self,
        source: Tensor,
        destination: Tensor,
        latest: Tensor | None,
        is_edge: Tensor | None,
        seed: int,
    ) -> None:
        store = self.store
        source_type, _, destination_type = self.edge_type
        if source.numel() > 0:
            for node_type in (source_type, destination_type):
                if store.num_nodes(node_type) == 0:
                    raise ValueError(f"sources: there is no node of type {node_type!r} to draw")
        negatives = _C.Negatives(
            source=self._source.native,
            destination=self._destination.native,
            draw_sources=self.mode == "binary",
            sources=source,
            destinations=destination,
            latest=latest,
            is_edge=is_edge,
            tries=self.tries,
            source_to_internal=store.id_map(source_type).internal_view,
            destination_to_internal=store.id_map(destination_type).internal_view,
            seed=seed,
            stream=NEGATIVE_STREAM,
        )
        view = store.csc(self.edge_type).view
        _C.sample_negatives(view, negatives, launch_on(source.device))


def check_amount(amount: float, mode: str) -> float:
    """Checks the number of negatives per positive."""
    if isinstance(amount, bool) or not isinstance(amount, (int, float)):
        raise TypeError(f"amount: expected a number, got {amount!r}")
    if not 0 < amount < 2**31:
        raise ValueError(f"amount: expected a positive number below 2**31, got {amount}")
    if mode == "triplet" and amount != int(amount):
        raise ValueError(f"amount: expected an integer for triplets, got {amount}")
    return amount
