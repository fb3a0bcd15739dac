"""The specification of k-hop sampling: sequential, in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from peergraph.reference.picks import picks
from peergraph.reference.weighted_temporal import Candidates, Choice, choose

NodeType = str
EdgeType = tuple[str, str, str]

_SeedTimes = tuple[Sequence[int], Sequence[int]]
"""The latest and the earliest times that the seeds admit."""


@dataclass
class Csc:
    """The CSC of one relation in users' ids.

    Args:
        indptr: [destinations + 1].
        indices: [edges] sources.
        edge_ids: [edges], None where the position is the id.
    """

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int64]
    edge_ids: npt.NDArray[np.int64] | None = None

    def neighbors(self, node: int) -> tuple[list[int], list[int]]:
        """Returns the sources and the edge ids of a node's list."""
        at = slice(int(self.indptr[node]), int(self.indptr[node + 1]))
        positions = range(at.start, at.stop)
        ids = list(positions) if self.edge_ids is None else self.edge_ids[at].tolist()
        return self.indices[at].tolist(), ids


@dataclass
class ReferenceSample:
    """Fields as in :class:`peergraph.sampling.Sample`, as lists; `batch` is always filled."""

    nodes: dict[NodeType, list[int]]
    batch: dict[NodeType, list[int]]
    row: dict[EdgeType, list[int]]
    col: dict[EdgeType, list[int]]
    edge_ids: dict[EdgeType, list[int]]
    duplicate_counts: dict[NodeType, list[int]]
    num_sampled_nodes: dict[NodeType, list[int]]
    num_sampled_edges: dict[EdgeType, list[int]]
    indptr: dict[EdgeType, list[list[int]]]
    first_target: dict[EdgeType, list[int]]
    _rows: dict[NodeType, dict[tuple[int, int], int]] = field(default_factory=dict, repr=False)

    @classmethod
    def empty(
        cls, node_types: Sequence[NodeType], edge_types: Sequence[EdgeType]
    ) -> ReferenceSample:
        """Returns an empty sample."""
        return cls(
            nodes={t: [] for t in node_types},
            batch={t: [] for t in node_types},
            row={t: [] for t in edge_types},
            col={t: [] for t in edge_types},
            edge_ids={t: [] for t in edge_types},
            duplicate_counts={t: [] for t in node_types},
            num_sampled_nodes={t: [] for t in node_types},
            num_sampled_edges={t: [] for t in edge_types},
            indptr={t: [] for t in edge_types},
            first_target={t: [] for t in edge_types},
            _rows={t: {} for t in node_types},
        )

    def append(self, node_type: NodeType, tree: int, node: int) -> int:
        """Appends a row; returns the first row of the same node (and tree)."""
        row = self._rows[node_type].setdefault((tree, node), len(self.nodes[node_type]))
        self.nodes[node_type].append(node)
        self.batch[node_type].append(tree)
        self.duplicate_counts[node_type].append(0)
        return row

    def has(self, node_type: NodeType, tree: int, node: int) -> bool:
        """Whether a node has a row."""
        return (tree, node) in self._rows[node_type]

    def row_of(self, node_type: NodeType, tree: int, node: int) -> int:
        """Returns the row of a node; appends a new node."""
        row = self._rows[node_type].get((tree, node))
        return self.append(node_type, tree, node) if row is None else row


def sample_khop(
    num_nodes: Mapping[NodeType, int],
    relations: Mapping[EdgeType, Csc],
    fanouts: Mapping[EdgeType, Sequence[int]],
    seeds: Mapping[NodeType, Sequence[int]],
    seed: int,
    *,
    frontier: str = "new",
    disjoint: bool = False,
    choices: Mapping[EdgeType, Choice] | None = None,
    seed_times: Sequence[int] | None = None,
    seed_starts: Sequence[int] | None = None,
    induced: bool = False,
) -> ReferenceSample:
    """Returns the sample that :class:`peergraph.sampling.NeighborSampler` must return.

    Args:
        num_nodes: node types, in the store's order.
        relations: structure, in the order of the store's edge types.
        fanouts, frontier, disjoint: as in `NeighborSampler`.
        seeds, seed: as in `NeighborSampler.sample`.
        choices: of relations that choose otherwise than at random without replacement.
        seed_times: where a choice is by time: of all seeds, in order; the sample is disjoint then.
        seed_starts: the earliest times that the seeds admit.
        induced: all edges among the nodes, instead of those that were sampled.
    """
    times = (
        None if seed_times is None else (seed_times, seed_starts or [-(2**63)] * len(seed_times))
    )
    sample = ReferenceSample.empty(list(num_nodes), list(relations))
    tree = 0
    for node_type, ids in seeds.items():
        for node in ids:
            sample.append(node_type, tree if disjoint else 0, node)
            tree += 1
    begin = dict.fromkeys(num_nodes, 0)
    num_hops = len(next(iter(fanouts.values()), []))
    for hop in range(num_hops):
        end = {t: len(sample.nodes[t]) for t in num_nodes}
        for r, (edge_type, csc) in enumerate(relations.items()):
            first = begin[edge_type[2]] if frontier == "new" else 0
            targets = range(first, end[edge_type[2]])
            stream = hop * len(relations) + r

            def chosen(
                target: int,
                position: int,
                edge_type: EdgeType = edge_type,
                csc: Csc = csc,
                fanout: int = fanouts[edge_type][hop],
                stream: int = stream,
            ) -> list[int]:
                choice = (choices or {}).get(edge_type)
                if choice is None:
                    node = sample.nodes[edge_type[2]][target]
                    degree = int(csc.indptr[node + 1] - csc.indptr[node])
                    return picks(degree, fanout, seed, stream, position)
                candidates = _candidates(sample, edge_type, csc, choice, target, times)
                candidates.hop_stream = stream - stream % len(relations)
                return choose(choice, candidates, fanout, seed, stream, position)

            _expand(sample, edge_type, csc, targets, chosen)
        begin = end
        for t in num_nodes:
            sample.num_sampled_nodes[t].append(end[t])
    for t in num_nodes:
        ends = [*sample.num_sampled_nodes[t], len(sample.nodes[t])]
        sample.num_sampled_nodes[t] = np.diff(ends, prepend=0).tolist()
    if induced:
        for edge_type, csc in relations.items():
            choice = (choices or {}).get(edge_type, Choice())
            _induce(sample, edge_type, csc, choice, times)
    return sample


def _candidates(
    sample: ReferenceSample,
    edge_type: EdgeType,
    csc: Csc,
    choice: Choice,
    target: int,
    seed_times: _SeedTimes | None,
) -> Candidates:
    sources, edge_ids = csc.neighbors(sample.nodes[edge_type[2]][target])
    weights, times = choice.weights, choice.times
    timed = edge_ids if choice.edge_time else sources
    latest, earliest = 0, -(2**63)
    if seed_times is not None:
        latest, earliest = (of_seeds[sample.batch[edge_type[2]][target]] for of_seeds in seed_times)
    if choice.window is not None:
        earliest = max(earliest, latest - choice.window)
    return Candidates(
        len(sources),
        None if weights is None else [float(weights[e]) for e in edge_ids],
        None if times is None else [int(times[i]) for i in timed],
        latest,
        earliest,
        sources,
        skip_zero_weights=choice.skip_zero_weights,
    )


def _induce(
    sample: ReferenceSample,
    edge_type: EdgeType,
    csc: Csc,
    choice: Choice,
    seed_times: _SeedTimes | None,
) -> None:
    """Replaces the edges of a relation by all its edges among the sampled nodes."""
    source_type, _, destination_type = edge_type

    def chosen(target: int, _: int) -> list[int]:
        tree = sample.batch[destination_type][target]
        sources, _edge_ids = csc.neighbors(sample.nodes[destination_type][target])
        admitted = _candidates(sample, edge_type, csc, choice, target, seed_times).admitted()
        return [i for i in admitted if sample.has(source_type, tree, sources[i])]

    for field_of_edges in (sample.row, sample.col, sample.edge_ids, sample.num_sampled_edges):
        field_of_edges[edge_type] = []
    sample.indptr[edge_type], sample.first_target[edge_type] = [], []
    _expand(sample, edge_type, csc, range(len(sample.nodes[destination_type])), chosen)


def _expand(
    sample: ReferenceSample,
    edge_type: EdgeType,
    csc: Csc,
    targets: range,
    chosen: Callable[[int, int], list[int]],
) -> None:
    """Adds the neighbours of `targets` (rows of the sample) by one relation; ``chosen(target,
    position)`` returns their positions in the list.
    """
    source_type, _, destination_type = edge_type
    indptr = [0]
    for position, target in enumerate(targets):
        node, tree = sample.nodes[destination_type][target], sample.batch[destination_type][target]
        sources, edge_ids = csc.neighbors(node)
        for pick in chosen(target, position):
            row = sample.row_of(source_type, tree, sources[pick])
            sample.duplicate_counts[source_type][row] += 1
            sample.row[edge_type].append(row)
            sample.col[edge_type].append(target)
            sample.edge_ids[edge_type].append(edge_ids[pick])
        indptr.append(len(sample.row[edge_type]))
    first_edge = sum(sample.num_sampled_edges[edge_type])
    sample.num_sampled_edges[edge_type].append(len(sample.row[edge_type]) - first_edge)
    sample.indptr[edge_type].append([0, *(end - first_edge for end in indptr[1:])])
    sample.first_target[edge_type].append(targets.start)
