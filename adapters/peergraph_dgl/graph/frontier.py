"""Samples one hop of neighbours, and induced subgraphs, with the options of DGL's functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from dgl import DGLError
from torch import Tensor
from torch.utils.data import get_worker_info

from peergraph.sampling import NeighborSampler, Sample, next_seed
from peergraph.store import EdgeType, NodeType, Store

from ..backend.materialize import materialize
from .choose_edges import choose_edges

IdsByType = Any
"""Ids (tensor or list) or a mask; a dict of them by node type for several types."""

Edges = dict[EdgeType, tuple[Tensor, Tensor, Tensor]]
"""Sources, destinations and edge ids by relation."""


class FrontierSampler:
    """Samples a store; every call draws its seed from torch's default generator."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._samplers: dict[Any, NeighborSampler] = {}

    def sample(
        self,
        nodes: IdsByType,
        fanouts: dict[EdgeType, int],
        prob: str | None,
        replace: bool,
        excluded: Mapping[EdgeType, Tensor] | None,
    ) -> Edges:
        """Samples in-edges, as the user's ids; see ``StoreGraph.sample_neighbors``."""
        weighted, masked = self._weight_and_mask_names(prob)
        # A mask of integers is applied to all in-edges before the choice.
        core_fanouts = {t: -1 if t in masked and k > 0 else k for t, k in fanouts.items()}
        core = self._core(tuple(core_fanouts.items()), tuple(weighted.items()), replace)
        by_relation = _global_ids(core.sample(self._seeds(nodes), next_seed()))
        for edge_type, name in masked.items():
            edges = self._without_zeros(edge_type, name, by_relation[edge_type])
            fanout = fanouts[edge_type]
            if fanout > 0:
                mask = choose_edges(edges[1], fanout, replace)
                edges = (edges[0][mask], edges[1][mask], edges[2][mask])
            by_relation[edge_type] = edges
        for edge_type, ids in (excluded or {}).items():
            source, destination, edge_ids = by_relation[edge_type]
            mask = ~torch.isin(edge_ids, ids.to(edge_ids.device))
            by_relation[edge_type] = (source[mask], destination[mask], edge_ids[mask])
        return by_relation

    def induced(self, nodes: IdsByType) -> tuple[dict[NodeType, Tensor], Edges]:
        """Returns the nodes in order, and all edges among them with positions of their
        endpoints.
        """
        key = "induced"
        if key not in self._samplers:
            self._check_process()
            fanouts = {t: [0] for t in self._store.edge_types}
            self._samplers[key] = NeighborSampler(self._store, fanouts, subgraph="induced")
        sample = self._samplers[key].sample(self._seeds(nodes), 0)
        assert sample.edge_ids is not None
        edges = {t: (sample.row[t], sample.col[t], sample.edge_ids[t]) for t in sample.row}
        return {t: ids.cpu() for t, ids in sample.nodes.items()}, _on_cpu(edges)

    def _core(self, fanouts: Any, weights: Any, replace: bool) -> NeighborSampler:
        key = (fanouts, weights, replace)
        if key not in self._samplers:
            self._check_process()
            self._samplers[key] = NeighborSampler(
                self._store,
                {t: [k] for t, k in fanouts},
                replace=replace,
                weights=dict(weights) or None,
                skip_zero_weights=bool(weights),
            )
        return self._samplers[key]

    def _check_process(self) -> None:
        if self._store.device.type == "cuda" and get_worker_info() is not None:
            raise RuntimeError(
                "num_workers: a store on GPUs is sampled in the process itself, use num_workers=0"
            )

    def _seeds(self, nodes: IdsByType) -> dict[NodeType, Tensor]:
        types = self._store.node_types
        if not isinstance(nodes, Mapping):
            if len(types) > 1:
                raise DGLError("Must specify node type when the graph is not homogeneous.")
            nodes = {types[0]: nodes}
        seeds = {}
        for node_type, of_type in nodes.items():
            ids = materialize(torch.as_tensor(of_type))
            if ids.dtype == torch.bool:
                ids = ids.nonzero().view(-1)
            seeds[node_type] = ids if ids.numel() else ids.to(torch.int64)
        return seeds

    def _weight_and_mask_names(
        self, prob: str | None
    ) -> tuple[dict[EdgeType, str], dict[EdgeType, str]]:
        """Returns the relations where ``prob`` is a weight or a mask of bools, and the relations
        where it is a mask of integers.
        """
        weighted: dict[EdgeType, str] = {}
        masked: dict[EdgeType, str] = {}
        if prob is None:
            return weighted, masked
        for edge_type in self._store.edge_types:
            if prob in self._store.edge_table_names(edge_type):
                dtype = self._store.edge_table(prob, edge_type).dtype
                is_weight = dtype.is_floating_point or dtype == torch.bool
                (weighted if is_weight else masked)[edge_type] = prob
        if not weighted and not masked:
            raise KeyError(f"prob: no edge type has a table {prob!r}")
        return weighted, masked

    def _without_zeros(
        self, edge_type: EdgeType, name: str, edges: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        source, destination, edge_ids = edges
        values = self._store.edge_table(name, edge_type).gather(edge_ids).reshape(-1)
        is_nonzero = (values != 0).to(edge_ids.device)
        return source[is_nonzero], destination[is_nonzero], edge_ids[is_nonzero]


def _global_ids(sample: Sample) -> Edges:
    assert sample.edge_ids is not None
    return {
        t: (
            sample.nodes[t[0]][sample.row[t]],
            sample.nodes[t[2]][sample.col[t]],
            sample.edge_ids[t],
        )
        for t in sample.row
    }


def _on_cpu(edges: Edges) -> Edges:
    return {t: (row.cpu(), col.cpu(), ids.cpu()) for t, (row, col, ids) in edges.items()}
