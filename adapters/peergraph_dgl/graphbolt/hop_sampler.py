"""Samples one hop of in-neighbours, with the options of GraphBolt's graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from peergraph.sampling import NeighborSampler, Sample
from peergraph.store import EdgeType, Store

from ..backend.graphbolt_operators import next_graphbolt_seed
from .cross_type_fanout import InEdges, sample_across_types

Nodes = Tensor | Mapping[str, Tensor]

_CORE_WEIGHTS = (torch.float32, torch.float64, torch.bool)
_MIN_TIME = torch.iinfo(torch.int64).min


class TimeLimits(NamedTuple):
    """Allows only edges whose time, or whose source's time, is before that of their seed node.

    Args:
        seed_time: a time for each seed node.
        node_time: name of node tables of times; types without such a table are not filtered.
        edge_time: name of edge tables of times; relations without such a table are not filtered.
    """

    seed_time: Nodes
    node_time: str | None
    edge_time: str | None


class SampledHop(NamedTuple):
    """The sampled edges, and the user's ids of their sources, by relation."""

    sources: dict[EdgeType, Tensor]
    neighbors: dict[EdgeType, InEdges]


class HopSampler:
    """Samples a store; every call draws its seed from GraphBolt's or torch's generator.

    The core samples with one fanout for each relation, weights in single or double precision or a
    mask, and times of nodes or of edges. For other options, all in-edges are read and chosen from.
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
        times: TimeLimits | None = None,
    ) -> SampledHop:
        """See ``SamplingGraph.sample_neighbors``.

        Args:
            fanouts: one for each relation, or one across all relations; -1: all.
            weights: name of edge tables with weights; edges with weight 0 are never drawn.
        """
        relations = list(self._store.edge_types)
        if len(fanouts) not in (1, len(relations)):
            raise ValueError(
                f"fanouts: expected {len(relations)}, one for each edge type, got {len(fanouts)}"
            )
        across_types = len(fanouts) == 1 < len(relations) and fanouts[0] > 0
        by_relation = list(fanouts) * (len(relations) if len(fanouts) == 1 else 1)
        weighted = self._weighted(weights)
        both_times = times is not None and None not in (times.node_time, times.edge_time)
        read_all = across_types or both_times or not self._core_supports(weighted)
        number = next_graphbolt_seed()
        if not read_all:
            sample = self._sampled(nodes, by_relation, replace, weights, labor, times, number)
            return self._hop(sample, self._allowed_edges(sample, {}, None)[0])
        sample = self._sampled(nodes, [-1] * len(relations), False, None, False, times, number)
        in_edges, values = self._allowed_edges(sample, weighted, times if both_times else None)
        if across_types:
            groups = [(relations, fanouts[0])]
        else:
            groups = [([t], k) for t, k in zip(relations, by_relation, strict=True)]
        generator = torch.Generator().manual_seed(number)
        num_sources = {t: ids.numel() for t, ids in sample.nodes.items()}
        for types, fanout in groups:
            if fanout >= 0:
                chosen = sample_across_types(
                    {t: in_edges[t] for t in types},
                    num_sources,
                    values,
                    fanout,
                    generator,
                    replace=replace,
                    labor=labor,
                )
                in_edges.update(chosen)
        return self._hop(sample, in_edges)

    def _hop(self, sample: Sample, in_edges: dict[EdgeType, InEdges]) -> SampledHop:
        sources = {t: sample.nodes[t[0]][edges.row] for t, edges in in_edges.items()}
        return SampledHop(sources, in_edges)

    def _weighted(self, name: str | None) -> dict[EdgeType, str]:
        """Returns the relations with a table of weights; the others draw uniformly."""
        tables = {t: self._store.edge_table_names(t) for t in self._store.edge_types}
        by_type = {t: name for t, names in tables.items() if name is not None and name in names}
        if name is not None and not by_type:
            raise ValueError(f"probs_name: no edge type has a table {name!r}, there are {tables}")
        return by_type

    def _core_supports(self, weighted: Mapping[EdgeType, str]) -> bool:
        tables = (self._store.edge_table(name, t) for t, name in weighted.items())
        return all(table.dtype in _CORE_WEIGHTS for table in tables)

    def _allowed_edges(
        self, sample: Sample, weighted: Mapping[EdgeType, str], times: TimeLimits | None
    ) -> tuple[dict[EdgeType, InEdges], dict[EdgeType, Tensor]]:
        """Returns the edges with a positive weight and, with `times`, earlier sources; their
        weights.
        """
        in_edges, values = {}, {}
        for edge_type in self._store.edge_types:
            block = sample.block(0, edge_type)
            assert block.edge_ids is not None
            edges = InEdges(block.indptr, block.row, block.edge_ids)
            if times is not None:
                edges = self._before_seed_time(sample, edges, edge_type, times)
            if edge_type in weighted:
                weight = self._edge_weights(edge_type, weighted[edge_type], edges)
                positive = weight.nonzero().view(-1)
                edges, values[edge_type] = edges.select(positive), weight[positive]
            in_edges[edge_type] = edges
        return in_edges, values

    def _edge_weights(self, edge_type: EdgeType, name: str, edges: InEdges) -> Tensor:
        values = self._store.edge_table(name, edge_type).gather(edges.edge_ids).reshape(-1)
        weights = values.to(edges.row.device, torch.float64)
        if not bool(((weights >= 0) & weights.isfinite()).all()):
            raise ValueError(
                f"probs_name: expected finite values of at least 0 in {name!r} of {edge_type}"
            )
        return weights

    def _before_seed_time(
        self, sample: Sample, edges: InEdges, edge_type: EdgeType, times: TimeLimits
    ) -> InEdges:
        """Returns the edges whose sources have an earlier time than their seed nodes."""
        source, _, target = edge_type
        assert times.node_time is not None
        if times.node_time not in self._store.node_table_names(source):
            return edges
        table = self._store.node_table(times.node_time, source)
        source_time = table.gather(sample.nodes[source][edges.row]).reshape(-1).to(edges.row.device)
        limits = times.seed_time
        if not isinstance(limits, Tensor):
            limits = limits.get(target, edges.row.new_empty(0))
        limit = limits.to(edges.row.device)[edges.destinations]
        return edges.select((source_time < limit).nonzero().view(-1))

    def _sampled(
        self,
        nodes: Nodes,
        fanouts: Sequence[int],
        replace: bool,
        weights: str | None,
        labor: bool,
        times: TimeLimits | None,
        number: int,
    ) -> Sample:
        edge_time = None if times is None else times.edge_time
        node_time = None if times is None or edge_time is not None else times.node_time
        key = (tuple(fanouts), replace, weights, labor, node_time, edge_time)
        if key not in self._samplers:
            by_type = zip(self._store.edge_types, fanouts, strict=True)
            self._samplers[key] = NeighborSampler(
                self._store,
                {edge_type: [fanout] for edge_type, fanout in by_type},
                replace=replace,
                weights=weights,
                skip_zero_weights=weights is not None,
                labor=labor,
                node_time=node_time,
                edge_time=edge_time,
            )
        before = None
        if times is not None and (node_time or edge_time):
            before = _before(times.seed_time)
        return self._samplers[key].sample(nodes, number, seed_time=before)


def _before(times: Nodes) -> Any:
    """Latest allowed times: the core allows equal times, GraphBolt earlier times only."""
    if isinstance(times, Mapping):
        return {t: _before(values) for t, values in times.items()}
    return times.clamp(min=_MIN_TIME + 1) - 1 if times.dtype == torch.int64 else times.long() - 1
