"""Negative edges for link prediction."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

import peergraph._C as _C

from .inputs import (
    NEGATIVE_STREAM,
    device_of,
    known_relation,
    launch,
    node_ids,
    random_seed,
    whole,
)
from .sample import EdgeType, NodeType

if TYPE_CHECKING:
    from ..store import Store

# Weights become integers whose sum stays below 2**62, so that their running sums are exact.
_WEIGHT_BITS = 61


class Negatives(NamedTuple):
    """The result of :meth:`NegativeSampler.sample`, on the store's device.

    Args:
        source: int64 user ids: binary [num_negatives]; triplet [positives, amount], the positives'
            sources repeated.
        destination: int64 user ids of the same shape.
        is_edge: bool of the same shape, True where all tries gave an existing edge; None unless
            existing edges are avoided.
    """

    source: Tensor
    destination: Tensor
    is_edge: Tensor | None


class NegativeSampler:
    """Draws negative edges, with the meaning of PyG's ``NegativeSampling``.

    The negatives depend on graph, positives, options and `seed` only, not on device, placement,
    number of ranks or threads; `peergraph.reference.walks` is the specification.

    Args:
        store: where the graph lies; must outlive the sampler.
        edge_type: the relation. Default: the store's only one.
        mode: ``"binary"``, pairs of a random source and a random destination, or ``"triplet"``,
            random destinations for each positive's source.
        amount: negatives per positive; an integer for triplets.
        src_weight: [sources] weights of the sources, of any float or integer dtype; None: uniform.
        dst_weight: the same for destinations, or ``"degree"``: the in-degree of the relation.
        avoid_edges: draw again where a negative is an edge of the relation, up to `tries` times.
            A try reads the in-neighbours of the destination (their order is the user's, so they
            are searched in turn; on a GPU by a warp).
        tries: how often a negative is drawn at most; the last one is kept and marked.

    Reads the in-degrees at construction for ``"degree"`` and synchronises then.

    Raises:
        ValueError: an unknown relation or option, a number out of range, weights of another length
            or negative, not finite or all 0.
        TypeError: a number or weights of another type.
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
            dst_weight = store.in_degree(known_relation("edge_type", store, edge_type))
        self.store = store
        self.edge_type = known_relation("edge_type", store, edge_type)
        self.mode = mode
        self.amount = check_amount(amount, mode)
        self.avoid_edges = bool(avoid_edges)
        self.tries = whole("tries", tries, 1, 2**30)
        self._source = _running_sum("src_weight", src_weight, store, edge_type[0])
        self._destination = _running_sum("dst_weight", dst_weight, store, edge_type[2])

    def sample(self, sources: Tensor | int, seed: int) -> Negatives:
        """Draws negatives for a batch of positives.

        Runs on the store's device, on the current stream; waits for the device only where
        `sources` are on a GPU (to check them) or in pinned memory. Not collective.

        Args:
            sources: [P] user ids of the positives' sources, int32 or int64, on any device; for
                binary negatives their number suffices.
            seed: of the random numbers, ``0 .. 2**64 - 1``.

        Returns:
            ``ceil(P * amount)`` binary negatives, or [P, amount] triplets.

        Raises:
            IndexError: a source that is no node, the first such.
            TypeError: sources of another dtype, or a number where triplets need the sources.
            ValueError: sources that are not 1-D, a `seed` out of range, or no node to draw.
        """
        seed = random_seed(seed)
        device = device_of(self.store)
        if self.mode == "triplet":
            positives = node_ids("sources", sources, self.store, self.edge_type[0])
            shape: tuple[int, ...] = (positives.numel(), int(self.amount))
            source = positives[:, None].expand(shape).contiguous()
        else:
            if isinstance(sources, Tensor):
                sources = node_ids("sources", sources, self.store, self.edge_type[0]).numel()
            shape = (math.ceil(whole("sources", sources, 0, 2**62) * self.amount),)
            source = torch.empty(shape, dtype=torch.int64, device=device)
        destination = torch.empty_like(source)
        is_edge = torch.empty_like(source, dtype=torch.bool) if self.avoid_edges else None
        self._draw(source, destination, is_edge, seed)
        return Negatives(source, destination, is_edge)

    def _draw(self, source: Tensor, destination: Tensor, is_edge: Tensor | None, seed: int) -> None:
        store = self.store
        source_type, _, destination_type = self.edge_type
        sizes = {t: store.num_nodes(t) for t in (source_type, destination_type)}
        if source.numel() > 0:
            for node_type, size in sizes.items():
                if size == 0:
                    raise ValueError(f"sources: there is no node of type {node_type!r} to draw")
        negatives = _C.Negatives(
            count=source.numel(),
            num_sources=sizes[source_type],
            source_ends=0 if self._source is None else self._source.data_ptr(),
            num_destinations=sizes[destination_type],
            destination_ends=0 if self._destination is None else self._destination.data_ptr(),
            draw_sources=self.mode == "binary",
            sources=source.data_ptr(),
            destinations=destination.data_ptr(),
            is_edge=0 if is_edge is None else is_edge.data_ptr(),
            tries=self.tries,
            source_to_internal=store.id_map(source_type).internal_address,
            destination_to_internal=store.id_map(destination_type).internal_address,
            seed=seed,
            stream=NEGATIVE_STREAM,
        )
        view = store.structure(self.edge_type).view
        _C.sample_negatives(view, negatives, *launch(source.device))


def check_amount(amount: float, mode: str) -> float:
    """Negatives per positive."""
    if isinstance(amount, bool) or not isinstance(amount, (int, float)):
        raise TypeError(f"amount: expected a number, got {amount!r}")
    if not 0 < amount < 2**31:
        raise ValueError(f"amount: expected a positive number below 2**31, got {amount}")
    if mode == "triplet" and amount != int(amount):
        raise ValueError(f"amount: expected an integer for triplets, got {amount}")
    return amount


def integer_weights(name: str, weight: Tensor) -> Tensor:
    """[N] int64 on the CPU: integer weights as they are, others scaled so that the sum comes close
    to 2**61 and what is not 0 stays so.
    """
    near = weight.detach().cpu()
    if not near.is_floating_point():
        near = near.long()
        # As floating point, which does not overflow.
        if int(near.min()) < 0 or float(near.double().sum()) >= 2**62:
            raise ValueError(f"{name}: expected weights of 0 and more with a sum below 2**62")
        return near
    near = near.double()
    if not bool(near.isfinite().all()) or float(near.min()) < 0:
        raise ValueError(f"{name}: expected finite weights of 0 and more")
    # First by the largest, as the sum may overflow.
    near = near / near.max().clamp(min=torch.finfo(torch.float64).tiny)
    scale = 2.0**_WEIGHT_BITS / max(float(near.sum()), 1.0)
    return torch.where(near > 0, (near * scale).long().clamp(min=1), 0)


def _running_sum(
    name: str, weight: Tensor | None, store: Store, node_type: NodeType
) -> Tensor | None:
    """[nodes] int64 running sum of the weights on the store's device; None: uniform."""
    if weight is None:
        return None
    if not isinstance(weight, Tensor) or weight.is_complex() or weight.dtype == torch.bool:
        got = weight.dtype if isinstance(weight, Tensor) else repr(weight)
        raise TypeError(f"{name}: expected a tensor of floats or integers, got {got}")
    size = store.num_nodes(node_type)
    if tuple(weight.shape) != (size,):
        raise ValueError(
            f"{name}: expected shape ({size},), a weight for each node of type {node_type!r}, "
            f"got {tuple(weight.shape)}"
        )
    if size == 0:
        return None
    ends = integer_weights(name, weight).cumsum(0)
    if int(ends[-1]) == 0:
        raise ValueError(f"{name}: expected at least one weight above 0")
    return ends.to(device_of(store))
