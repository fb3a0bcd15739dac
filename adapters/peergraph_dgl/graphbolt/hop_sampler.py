"""One hop of in-neighbours from a store, with GraphBolt's meaning of the options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from peergraph.sampling import NeighborSampler, Sample
from peergraph.store import EdgeType, Store

from ..backend.graphbolt_operators import random_number
from .cross_type_fanout import Lists, choose_among

Nodes = Tensor | Mapping[str, Tensor]

_CORE_WEIGHTS = (torch.float32, torch.float64)
_OLDEST = torch.iinfo(torch.int64).min


class Times(NamedTuple):
    """Edges are taken only if they, or their sources, are older than the node they lead to.

    Args:
        of_seeds: a time for each node that is given.
        of_nodes: name of a node table of times; types without it are not filtered.
        of_edges: name of an edge table of times; relations without it are not filtered.
    """

    of_seeds: Nodes
    of_nodes: str | None
    of_edges: str | None


class Hop(NamedTuple):
    """Edges by relation: user ids of their sources, and where each node's edges are."""

    sources: dict[EdgeType, Tensor]
    lists: dict[EdgeType, Lists]


class HopSampler:
    """Draws from a store; a random number per call from :func:`graphbolt_operators.random_number`.

    What the core draws itself (one fanout for each relation, weights in single or double
    precision, one kind of times) costs what is drawn; everything else is chosen among whole lists.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._samplers: dict[Any, NeighborSampler] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_store": self._store, "_samplers": {}}

    def draw(
        self,
        nodes: Nodes,
        fanouts: Sequence[int],
        replace: bool,
        weights: str | None,
        labor: bool,
        times: Times | None = None,
    ) -> Hop:
        """See ``StoreSamplingGraph.sample_neighbors``.

        Args:
            fanouts: one for each relation, or one for all of them together; -1: all.
            weights: name of an edge table to draw by; never what weighs 0.
        """
        relations = list(self._store.edge_types)
        if len(fanouts) not in (1, len(relations)):
            raise ValueError(
                f"fanouts: expected {len(relations)}, one for each edge type, got {len(fanouts)}"
            )
        together = len(fanouts) == 1 < len(relations) and fanouts[0] > 0
        by_relation = list(fanouts) * (len(relations) if len(fanouts) == 1 else 1)
        weighted = self._weighted(weights)
        both_times = times is not None and None not in (times.of_nodes, times.of_edges)
        whole = together or both_times or not self._core_draws_by(weighted)
        number = random_number()
        if not whole:
            sample = self._sampled(nodes, by_relation, replace, weights, labor, times, number)
            return self._hop(sample, self._usable(sample, weighted, None)[0])
        sample = self._sampled(nodes, [-1] * len(relations), False, None, False, times, number)
        lists, values = self._usable(sample, weighted, times if both_times else None)
        groups = [(relations, fanouts[0])] if together else []
        groups += (
            [] if together else [([t], k) for t, k in zip(relations, by_relation, strict=True)]
        )
        generator = torch.Generator().manual_seed(number)
        num_sources = {t: ids.numel() for t, ids in sample.nodes.items()}
        for types, fanout in groups:
            if fanout >= 0:
                chosen = choose_among(
                    {t: lists[t] for t in types},
                    num_sources,
                    values,
                    fanout,
                    generator,
                    replace=replace,
                    labor=labor,
                )
                lists.update(chosen)
        return self._hop(sample, lists)

    def _hop(self, sample: Sample, lists: dict[EdgeType, Lists]) -> Hop:
        return Hop({t: sample.nodes[t[0]][part.row] for t, part in lists.items()}, lists)

    def _weighted(self, name: str | None) -> dict[EdgeType, str]:
        """The relations that have such a table; the others draw uniformly."""
        tables = {t: self._store.edge_table_names(t) for t in self._store.edge_types}
        found = {t: name for t, names in tables.items() if name is not None and name in names}
        if name is not None and not found:
            raise ValueError(f"probs_name: no edge type has a table {name!r}, there are {tables}")
        return found

    def _core_draws_by(self, weighted: Mapping[EdgeType, str]) -> bool:
        tables = (self._store.edge_table(name, t) for t, name in weighted.items())
        return all(table.dtype in _CORE_WEIGHTS for table in tables)

    def _usable(
        self, sample: Sample, weighted: Mapping[EdgeType, str], times: Times | None
    ) -> tuple[dict[EdgeType, Lists], dict[EdgeType, Tensor]]:
        """The edges that weigh anything and, with `times`, come from older nodes; their weights."""
        lists, values = {}, {}
        for edge_type in self._store.edge_types:
            block = sample.block(0, edge_type)
            assert block.edge_ids is not None
            part = Lists(block.indptr, block.row, block.edge_ids)
            if times is not None:
                part = self._older(sample, part, edge_type, times)
            if edge_type in weighted:
                weight = self._weights(edge_type, weighted[edge_type], part)
                used = weight.nonzero().view(-1)
                part, values[edge_type] = part.at(used), weight[used]
            lists[edge_type] = part
        return lists, values

    def _weights(self, edge_type: EdgeType, name: str, part: Lists) -> Tensor:
        values = self._store.edge_table(name, edge_type).gather(part.edge_ids).reshape(-1)
        weights = values.to(part.row.device, torch.float64)
        if not bool(((weights >= 0) & weights.isfinite()).all()):
            raise ValueError(
                f"probs_name: expected finite values of at least 0 in {name!r} of {edge_type}"
            )
        return weights

    def _older(self, sample: Sample, part: Lists, edge_type: EdgeType, times: Times) -> Lists:
        """The edges whose sources are older than what they lead to."""
        source, _, target = edge_type
        assert times.of_nodes is not None
        if times.of_nodes not in self._store.node_table_names(source):
            return part
        table = self._store.node_table(times.of_nodes, source)
        of_sources = table.gather(sample.nodes[source][part.row]).reshape(-1)
        given = times.of_seeds
        limits = given if isinstance(given, Tensor) else given.get(target, part.row.new_empty(0))
        limit = limits.to(part.row.device)[part.owners]
        return part.at((of_sources.to(part.row.device) < limit).nonzero().view(-1))

    def _sampled(
        self,
        nodes: Nodes,
        fanouts: Sequence[int],
        replace: bool,
        weights: str | None,
        labor: bool,
        times: Times | None,
        number: int,
    ) -> Sample:
        of_edges = None if times is None else times.of_edges
        of_nodes = None if times is None or of_edges is not None else times.of_nodes
        key = (tuple(fanouts), replace, weights, labor, of_nodes, of_edges)
        if key not in self._samplers:
            by_type = zip(self._store.edge_types, fanouts, strict=True)
            self._samplers[key] = NeighborSampler(
                self._store,
                {edge_type: [fanout] for edge_type, fanout in by_type},
                replace=replace,
                weights=weights,
                labor=labor,
                node_time=of_nodes,
                edge_time=of_edges,
            )
        before = None
        if times is not None and (of_nodes or of_edges):
            before = _before(times.of_seeds)
        return self._samplers[key].sample(nodes, number, seed_time=before)


def _before(times: Nodes) -> Any:
    """The core takes what is not after a time, GraphBolt what is before it."""
    if isinstance(times, Mapping):
        return {t: _before(values) for t, values in times.items()}
    return times.clamp(min=_OLDEST + 1) - 1 if times.dtype == torch.int64 else times.long() - 1
