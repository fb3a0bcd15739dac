"""DGL's random walks on a ``StoreGraph``, by the walks of its store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dgl
import torch
from torch import Tensor

from peergraph.sampling import RandomWalker, next_seed
from peergraph.store import reverse_type

from ..graph.store_graph import StoreGraph


def random_walk(
    original: Any,
    g: Any,
    nodes: Any,
    *,
    metapath: Sequence[Any] | None = None,
    length: int | None = None,
    prob: str | None = None,
    restart_prob: float | Tensor | None = None,
    return_eids: bool = False,
) -> Any:
    """``dgl.sampling.random_walk``; of a ``StoreGraph``, by its store's other orientation.

    The first walk makes the store build it (:meth:`Store.reversed`), which is collective.
    """
    if not isinstance(g, StoreGraph):
        return original(
            g,
            nodes,
            metapath=metapath,
            length=length,
            prob=prob,
            restart_prob=restart_prob,
            return_eids=return_eids,
        )
    if prob is not None:
        raise NotImplementedError(f"prob={prob!r}: walks of a StoreGraph are uniform")
    if metapath is None:
        if not g.is_homogeneous:
            raise dgl.DGLError("metapath not specified and the graph is not homogeneous.")
        if length is None:
            raise ValueError("Please specify either the metapath or the random walk length.")
        metapath = list(g.canonical_etypes) * length
    path = [g.to_canonical_etype(edge_type) for edge_type in metapath]
    cycle = _shortest_cycle(path)
    # DGL may end a walk before its first step, the core does not.
    probability, every, first = _restarts(restart_prob, len(path))
    starts = torch.as_tensor(nodes).to("cpu", torch.int64)
    walker = RandomWalker(
        g.store.reversed(), [reverse_type(t) for t in cycle], edge_ids=return_eids
    )
    walks = walker.walk(
        starts,
        len(path),
        next_seed(),
        restart_prob=probability,
        restart="end",
        restart_every=every,
        dead_end="pad",
    )
    traces = walks.nodes.to("cpu", g.idtype)
    if first > 0:
        traces[torch.rand(len(starts), device="cpu") < first, 1:] = -1
    types = [path[0][0], *(t[2] for t in path)] if path else g.ntypes[:1]
    numbers = torch.tensor([g.ntypes.index(t) for t in types], dtype=g.idtype)
    if not return_eids:
        return traces, numbers
    assert walks.edge_ids is not None
    ids = walks.edge_ids.to("cpu", g.idtype).masked_fill(traces[:, 1:] < 0, -1)
    return traces, ids, numbers


def node2vec_walk(
    original: Any,
    g: Any,
    nodes: Any,
    p: float,
    q: float,
    walk_length: int,
    prob: str | None = None,
    return_eids: bool = False,
) -> Any:
    """``dgl.sampling.node2vec_random_walk``; of a ``StoreGraph``, as :func:`random_walk`."""
    if not isinstance(g, StoreGraph):
        return original(g, nodes, p, q, walk_length, prob, return_eids)
    if prob is not None:
        raise NotImplementedError(f"prob={prob!r}: walks of a StoreGraph are uniform")
    starts = torch.as_tensor(nodes).to("cpu", torch.int64)
    walker = RandomWalker(g.store.reversed(), edge_ids=return_eids)
    walks = walker.walk(starts, walk_length, next_seed(), p=p, q=q, dead_end="pad")
    traces = walks.nodes.to("cpu", g.idtype)
    if walks.edge_ids is None:
        return traces
    return traces, walks.edge_ids.to("cpu", g.idtype)


def global_uniform(original: Any, g: Any, *args: Any, **kwargs: Any) -> Any:
    """``dgl.sampling.global_uniform_negative_sampling``; of a ``StoreGraph``, its method."""
    if isinstance(g, StoreGraph):
        return g.global_uniform_negative_sampling(*args, **kwargs)
    return original(g, *args, **kwargs)


def _shortest_cycle(path: list[Any]) -> list[Any]:
    """Returns the shortest metapath that gives `path` when it is followed over and over."""
    for size in range(1, len(path)):
        if all(path[i] == path[i % size] for i in range(len(path))):
            return path[:size]
    return path


def _restarts(restart_prob: float | Tensor | None, steps: int) -> tuple[float, int, float]:
    """Returns the probability of an end, every how many steps, and that before the first step.

    Raises:
        NotImplementedError: probabilities of steps that are not those of PinSAGE.
    """
    if restart_prob is None:
        return 0.0, 1, 0.0
    if not isinstance(restart_prob, Tensor):
        return float(restart_prob), 1, float(restart_prob)
    places = restart_prob.nonzero().view(-1).tolist()
    if not places:
        return 0.0, 1, 0.0
    every = places[0]
    value = float(restart_prob[every])
    is_regular = every > 0 and places == list(range(every, steps, every))
    if not is_regular or bool((restart_prob[places] != value).any()):
        raise NotImplementedError(
            "restart_prob: of a StoreGraph, one probability every so many steps, or a float"
        )
    return value, every, 0.0
