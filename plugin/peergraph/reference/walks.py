"""The specification of walks, PinSAGE neighbours and negatives, in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peergraph.reference.philox import random_below
from peergraph.reference.sampling import Csc, EdgeType

WALK_STREAM = 1 << 31
NEGATIVE_STREAM = 3 << 30
CERTAIN = 1 << 53
MAX_TRIES = 4096


def neighbors(csc: Csc, node: int) -> list[int]:
    """Returns the in-neighbours of a node, in order."""
    return [int(i) for i in csc.indices[int(csc.indptr[node]) : int(csc.indptr[node + 1])]]


def walk(
    relations: Mapping[EdgeType, Csc],
    metapath: Sequence[EdgeType],
    starts: Sequence[int],
    length: int,
    seed: int,
    *,
    restart_prob: float = 0.0,
    restart: str = "jump",
    p: float = 1.0,
    q: float = 1.0,
    dead_end: str = "stay",
    restart_every: int = 1,
    first_stream: int = WALK_STREAM,
) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the result that :meth:`peergraph.sampling.RandomWalker.walk` must return."""
    rows, edge_rows = [], []
    for position, start in enumerate(starts):
        nodes, edges = [start], []
        previous: int | None = None
        ended = False
        for step in range(length):
            csc = relations[metapath[step % len(metapath)]]
            stream = first_stream + step
            here, edge = nodes[-1], -1
            may_restart = step > 0 and step % restart_every == 0
            if ended:
                pass
            elif may_restart and _happens(restart_prob, seed, stream, position):
                ended = restart == "end"
                here, previous = start, None
            elif not neighbors(csc, here):
                ended = True
            else:
                pick = _pick(csc, here, previous, (p, q), seed, stream, position)
                at = int(csc.indptr[here]) + pick
                edge = at if csc.edge_ids is None else int(csc.edge_ids[at])
                previous, here = here, int(csc.indices[at])
            if ended:
                here = nodes[-1] if dead_end == "stay" else -1
            nodes.append(here)
            edges.append(edge)
        rows.append(nodes)
        edge_rows.append(edges)
    return rows, edge_rows


def _happens(probability: float, seed: int, stream: int, position: int) -> bool:
    return random_below(CERTAIN, seed, stream, position, 0) < int(probability * CERTAIN)


def _pick(
    csc: Csc,
    here: int,
    previous: int | None,
    return_in_out: tuple[float, float],
    seed: int,
    stream: int,
    position: int,
) -> int:
    """Picks the neighbour of `here` for the next step."""
    candidates = neighbors(csc, here)
    p, q = return_in_out
    if (p, q) == (1, 1) or previous is None or len(candidates) == 1:
        return random_below(len(candidates), seed, stream, position, 1)
    before = set(neighbors(csc, previous))
    most = max(1 / p, 1.0, 1 / q)
    pick = 0
    for t in range(MAX_TRIES):
        pick = random_below(len(candidates), seed, stream, position, 2 + 2 * t)
        weight = (
            1 / p if candidates[pick] == previous else 1.0 if candidates[pick] in before else 1 / q
        )
        if random_below(CERTAIN, seed, stream, position, 3 + 2 * t) < int(weight / most * CERTAIN):
            break
    return pick


@dataclass
class ReferenceLayer:
    """Fields as in :class:`peergraph.sampling.PinSageLayer`, as lists."""

    row: list[int]
    col: list[int]
    visits: list[int]
    num_targets: int
    num_sources: int


def pinsage(
    relations: Mapping[EdgeType, Csc],
    metapath: Sequence[EdgeType],
    seeds: Sequence[int],
    seed: int,
    *,
    num_walks: int,
    walk_length: int,
    num_neighbors: int,
    restart_prob: float = 0.0,
    num_layers: int = 1,
) -> tuple[list[int], list[ReferenceLayer]]:
    """Returns the result that :meth:`peergraph.sampling.PinSageSampler.sample` must return."""
    nodes = list(seeds)
    layers = []
    hops = len(metapath)
    for number in range(num_layers):
        layer = ReferenceLayer([], [], [], len(nodes), 0)
        walks, _ = walk(
            relations,
            metapath,
            [node for node in nodes for _ in range(num_walks)],
            walk_length * hops,
            seed,
            restart_prob=restart_prob,
            restart="end",
            dead_end="pad",
            restart_every=hops,
            first_stream=WALK_STREAM + number * walk_length * hops,
        )
        for target in range(layer.num_targets):
            of_target = walks[target * num_walks : (target + 1) * num_walks]
            visited = Counter(n for w in of_target for n in w[hops::hops] if n >= 0)
            # A Counter keeps the order of first visits, and so does its sort by count.
            for node, count in visited.most_common()[:num_neighbors]:
                if node not in nodes:
                    nodes.append(node)
                layer.row.append(nodes.index(node))
                layer.col.append(target)
                layer.visits.append(count)
        layer.num_sources = len(nodes)
        layers.append(layer)
    return nodes, layers


def draw_node(weights: Sequence[int], seed: int, position: int, draw: int) -> int:
    """Draws a node with a probability in proportion to its integer weight."""
    left = random_below(sum(weights), seed, NEGATIVE_STREAM, position, draw)
    for node, weight in enumerate(weights):
        if left < weight:
            return node
        left -= weight
    raise AssertionError("a draw is below the sum")


@dataclass
class Endpoint:
    """The distribution of one endpoint of negatives."""

    weights: Sequence[int]
    times: Sequence[int] | None = None

    def fits(self, node: int, latest: int) -> bool:
        """Whether the node is early enough."""
        return self.times is None or self.times[node] <= latest

    @property
    def earliest(self) -> int:
        """The first node with the smallest time."""
        return 0 if self.times is None else self.times.index(min(self.times))


def negatives(
    csc: Csc,
    sources: Sequence[int] | None,
    count: int,
    source: Endpoint,
    destination: Endpoint,
    seed: int,
    *,
    latest: Sequence[int] | None = None,
    tries: int = 16,
    avoid_edges: bool = False,
) -> tuple[list[int], list[int], list[bool]]:
    """Sources, destinations, and whether the pair is an edge, that
    :meth:`peergraph.sampling.NegativeSampler.sample` must return.

    Args:
        sources: of the negatives; None: drawn.
        latest: the time of each negative.
    """
    pairs: list[tuple[int, int]] = []
    for n in range(count):
        limit = 0 if latest is None else latest[n]
        start = None if sources is None else sources[n]
        u, v = start, None
        for t in range(tries):
            if u is None:
                drawn = draw_node(source.weights, seed, n, 2 * t)
                u = drawn if source.fits(drawn, limit) else None
            if v is None:
                drawn = draw_node(destination.weights, seed, n, 2 * t + 1)
                v = drawn if destination.fits(drawn, limit) else None
            if u is None or v is None:
                continue
            if not (avoid_edges and u in neighbors(csc, v)):
                break
            if t < tries - 1:
                u, v = start, None
        pairs.append(
            (source.earliest if u is None else u, destination.earliest if v is None else v)
        )
    return [u for u, _ in pairs], [v for _, v in pairs], [u in neighbors(csc, v) for u, v in pairs]
