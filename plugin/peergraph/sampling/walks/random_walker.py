"""Random walks over a store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.capture_mode import is_capturing
from peergraph.memory.device.launching import launch_on
from peergraph.profiling import SAMPLE, profiled
from peergraph.sampling.arguments import (
    MAX_STEPS,
    PROBABILITY_ONE,
    WALK_STREAM,
    check_edge_type,
    check_int_range,
    check_node_ids,
    check_seed,
    store_device,
    to_fixed_point,
)
from peergraph.sampling.csc_reads import count_walks, csc_rows, edge_ids_at
from peergraph.sampling.sample import EdgeType

if TYPE_CHECKING:
    from peergraph.store import Store
    from peergraph.store.report.read_recorder import ReadRecorder

Metapath = list[EdgeType]

ALWAYS_ACCEPT = (PROBABILITY_ONE, PROBABILITY_ONE, PROBABILITY_ONE)


class Walks(NamedTuple):
    """The result of :meth:`RandomWalker.walk`, on the store's device.

    Args:
        nodes: [S, length + 1] int64 user ids, the starts first.
        edge_ids: [S, length] int64 user edge ids of the steps, -1: no edge; None unless the walker
            was made with ``edge_ids=True``.
    """

    nodes: Tensor
    edge_ids: Tensor | None


class RandomWalker:
    """Random walks, uniform or second order (node2vec), over one relation or along a metapath.

    A step goes from a node to one of its **in-neighbours**, as sampling does: the store keeps
    in-neighbours (CSC). ``torch_geometric``'s and DGL's random walks follow out-edges; for those,
    walk on ``store.reversed()``. On an undirected graph it is the same.

    The walks depend on graph, starts, options and seed only, not on device, placement, number of
    ranks or threads; `peergraph.reference.walks` is the specification. XGNN 2 names random walks as
    a way of sampling, without an algorithm.

    Args:
        store: the graph; must outlive the walker.
        edge_type: the relation, or a metapath: a list of relations that a walk follows in turn,
            over and over, from destinations of ``[0]`` to its sources, which are the
            destinations of ``[1]``, and so on. Default: the store's only relation.
        edge_ids: also return the user's edge ids.

    Raises:
        ValueError: an unknown relation, an empty list, relations that do not join, or no
            `edge_type` where the store has several relations.
    """

    def __init__(
        self,
        store: Store,
        edge_type: EdgeType | Metapath | None = None,
        *,
        edge_ids: bool = False,
    ) -> None:
        self.store = store
        self.metapath = check_metapath(store, edge_type)
        self.edge_ids = bool(edge_ids)

    @property
    def one_node_type(self) -> bool:
        """Whether all nodes of a walk are of one type."""
        return all(t[0] == t[2] == self.metapath[0][2] for t in self.metapath)

    def walk(
        self,
        start: Tensor,
        length: int,
        seed: int,
        *,
        restart_prob: float = 0.0,
        restart: Literal["jump", "end"] = "jump",
        restart_every: int = 1,
        p: float = 1.0,
        q: float = 1.0,
        dead_end: Literal["stay", "pad"] = "stay",
    ) -> Walks:
        """Walks from each of `start`.

        Runs on the store's device, on the current stream; waits for the device only where `start`
        is on a GPU (to check it) or in pinned memory. Not collective.

        With `p` or `q` other than 1, a step from v to x after one from t to v has the weight 1/p
        where x is t, 1 where x is an in-neighbour of t, else 1/q. Candidates are drawn and
        rejected until one is accepted, at most 4096 times; then the last one is taken. If the
        weight of a candidate depends on whether x is an in-neighbour of t, the list of t is read up
        to x (lists have the user's order, which is not sorted); on a GPU a warp reads together.

        Args:
            start: [S] user ids, int32 or int64, of the destination type of ``metapath[0]``, on any
                device; duplicates walk independently.
            length: steps, ``0 .. 2**30 - 1``.
            seed: the seed of the random numbers, ``0 .. 2**64 - 1``.
            restart_prob: probability of a restart before each step but the first.
            restart: ``"jump"``, the step goes back to the start (random walk with restart), or
                ``"end"``, the walk ends (DGL).
            restart_every: steps between two possible restarts.
            p, q: node2vec's return and in-out parameters.
            dead_end: the nodes after the end of a walk, at a node without in-neighbours or by a
                restart: ``"stay"``, the last node again (PyG), or ``"pad"``, -1 (DGL).

        Raises:
            IndexError: a start that is no node, the first such.
            TypeError: starts of another dtype, or no tensor; a number of another type.
            ValueError: starts that are not 1-D, a number out of range, an unknown option; steps
                behind the end of a metapath that does not come back; ``"stay"`` or ``"jump"`` with
                nodes of several types.
            NotImplementedError: `p` or `q` with several relations.
        """
        self._check_options(restart_prob, restart, dead_end)
        length = check_int_range("length", length, 0, MAX_STEPS - 1)
        hops = len(self.metapath)
        if length > hops and self.metapath[-1][0] != self.metapath[0][2]:
            raise ValueError(
                f"length: the metapath ends after {hops} steps at {self.metapath[-1][0]!r} and "
                f"does not come back to {self.metapath[0][2]!r}, got {length}"
            )
        accept = node2vec_acceptance(p, q)
        if accept != ALWAYS_ACCEPT and hops > 1:
            raise NotImplementedError("p, q: not supported along a metapath of several relations")
        walks = self.draw_walks(
            check_node_ids("start", start, self.store, self.metapath[0][2]),
            length,
            check_seed(seed),
            restart_below=to_fixed_point("restart_prob", restart_prob),
            restart_every=check_int_range("restart_every", restart_every, 1, MAX_STEPS),
            jump=restart == "jump",
            accept=accept,
            stay=dead_end == "stay",
        )
        count_walks(self.store)
        return walks

    def _check_options(self, restart_prob: float, restart: str, dead_end: str) -> None:
        if restart not in ("jump", "end"):
            raise ValueError(f"restart: expected 'jump' or 'end', got {restart!r}")
        if dead_end not in ("stay", "pad"):
            raise ValueError(f"dead_end: expected 'stay' or 'pad', got {dead_end!r}")
        if dead_end == "stay" and not self.one_node_type:
            raise ValueError("dead_end: 'stay' needs nodes of one type; use 'pad'")
        if restart == "jump" and restart_prob and len(self.metapath) > 1:
            raise ValueError("restart: 'jump' needs a single relation; use 'end'")

    @profiled(SAMPLE)
    def draw_walks(
        self,
        start: Tensor,
        length: int,
        seed: int,
        *,
        stream: int = WALK_STREAM,
        restart_below: int = 0,
        restart_every: int = 1,
        jump: bool = False,
        accept: Sequence[int] = ALWAYS_ACCEPT,
        stay: bool = False,
    ) -> Walks:
        """Draws walks from arguments that have been checked. Asynchronous on a GPU.

        Args:
            start: int64 [S] user ids on the store's device.
            length, seed: as for :meth:`walk`.
            stream: the stream of random numbers of the first step; step t uses ``stream + t``.
            restart_below: the probability of a restart, as a multiple of 2**-53.
            restart_every: the number of steps between two possible restarts.
            jump: whether a restart goes back to the start; otherwise it ends the walk.
            accept: the probabilities of node2vec as :func:`node2vec_acceptance` returns them.
            stay: whether a walk that has ended repeats its last node; otherwise -1 follows.
        """
        store, device = self.store, store_device(self.store)
        measuring = None if is_capturing(device) else store.measuring
        nodes = torch.empty((start.numel(), length + 1), dtype=torch.int64, device=device)
        nodes[:, 0] = start
        needs_ids = self.edge_ids or measuring is not None
        edge_ids = torch.empty_like(nodes[:, 1:]).contiguous() if needs_ids else None
        positions = torch.empty_like(start)
        hops = len(self.metapath)
        # With one relation, one call takes all steps.
        steps_a_call = max(length, 1) if hops == 1 else 1
        with nullcontext() if measuring is None else measuring.sampling.running():
            for first in range(0, length, steps_a_call):
                edge_type = self.metapath[first % hops]
                walks = _C.Walks(
                    first_step=first,
                    steps=steps_a_call,
                    nodes=nodes,
                    edge_ids=edge_ids,
                    positions=positions,
                    to_internal=store.id_map(edge_type[2]).internal_view,
                    to_user=store.id_map(edge_type[0]).user_view,
                    seed=seed,
                    stream=stream,
                    restart_below=restart_below,
                    restart_every=restart_every,
                    jump=jump,
                    stay=stay,
                    accept=accept,
                )
                csc = store.csc(edge_type)
                view = csc.view if measuring is None else csc.positions_view()
                _C.random_walk(view, walks, launch_on(device))
        if measuring is None:
            return Walks(nodes, edge_ids)
        assert edge_ids is not None
        return Walks(nodes, self._count_reads(measuring, nodes, edge_ids, restart_below > 0))

    def _count_reads(
        self, measuring: ReadRecorder, nodes: Tensor, positions: Tensor, restarts: bool
    ) -> Tensor | None:
        """Counts the neighbour lists that walks have read; returns the edge ids if wanted.

        Args:
            measuring: counts the reads.
            nodes: [S, length + 1] user ids.
            positions: [S, length] positions of the edges in the user's CSC, -1: no edge.
            restarts: whether a step without an edge may be a restart, which reads no list.
        """
        read = steps_taken = positions >= 0
        if not restarts:  # a walk ends where it has read an empty list
            read = torch.ones_like(steps_taken)
            read[:, 1:] = steps_taken[:, :-1]
        edge_ids = torch.empty_like(positions) if self.edge_ids else None
        for place, edge_type in enumerate(self.metapath):
            steps = slice(place, None, len(self.metapath))
            users = nodes[:, :-1][:, steps].masked_fill(~read[:, steps], -1)
            rows = csc_rows(self.store, edge_type, users)
            measuring.add_lists(edge_type, rows, steps_taken[:, steps].long())
            if edge_ids is not None:
                edge_ids[:, steps] = edge_ids_at(self.store, edge_type, positions[:, steps])
        return edge_ids


def check_metapath(store: Store, edge_type: EdgeType | Metapath | None) -> Metapath:
    """Returns the relations that a walk follows in turn."""
    if edge_type is None:
        if len(store.edge_types) != 1:
            raise ValueError(f"edge_type: one of {list(store.edge_types)} is needed")
        return list(store.edge_types)
    metapath = edge_type if isinstance(edge_type, list) else [edge_type]
    if not metapath:
        raise ValueError("edge_type: expected at least one relation, got an empty list")
    for t in metapath:
        check_edge_type("edge_type", store, t)
    for t, following in pairwise(metapath):
        if t[0] != following[2]:
            raise ValueError(
                f"edge_type: {t} leads to {t[0]!r}, but {following} starts at {following[2]!r}"
            )
    return list(metapath)


def node2vec_acceptance(p: float, q: float) -> tuple[int, int, int]:
    """Returns the probabilities, as multiples of 2**-53, of accepting a candidate: the previous
    node, a neighbour of the previous node, any other node.
    """
    for name, value in (("p", p), ("q", q)):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name}: expected a number, got {value!r}")
        if not (0 < value < math.inf):
            raise ValueError(f"{name}: expected a positive number, got {value}")
    weights = (1 / p, 1.0, 1 / q)
    most = max(weights)
    back, common, other = (int(w / most * PROBABILITY_ONE) for w in weights)
    return back, common, other
