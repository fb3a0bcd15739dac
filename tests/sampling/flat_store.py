"""A store over tensors as they are, for graphs too large to be copied."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peergraph import _C
from peergraph.sampling import Sample
from tests.sampling.plain_store import EDGE, NODE, SINGLE, IdMap, PlainTable, Structure


class FlatStore:
    """Has what the sampler asks of a store; one relation, on one tier.

    Args:
        indptr: [nodes + 1] int64.
        indices: [edges] int32.
    """

    measuring = None  # nobody asks where reads went

    def __init__(self, indptr: Tensor, indices: Tensor) -> None:
        self.device = indices.device
        self.indptr, self.indices = indptr.to(self.device), indices
        self.node_types, self.edge_types = [NODE], [EDGE]
        self._tables: dict[str, PlainTable] = {}
        begins = self.indptr[:-1].contiguous()
        view = _C.CscView(
            replicated=begins.numel(),
            sharded=0,
            rows=begins.numel(),
            num_edges=indices.numel(),
            index_bytes=4,
            rank=0,
            replicas=[(self.indptr.data_ptr(), indices.data_ptr(), begins.data_ptr())],
            shards=[],
            host=(0, 0, 0),
            edge_ids=_C.TableView(),
        )
        self._structure = Structure(view, [self.indptr, indices, begins])

    def num_nodes(self, node_type: str = NODE) -> int:
        return self.indptr.numel() - 1

    def num_edges(self, edge_type: tuple[str, str, str] = EDGE) -> int:
        return self.indices.numel()

    def id_map(self, node_type: str = NODE) -> IdMap:
        return IdMap(None, None)

    def csc(self, edge_type: tuple[str, str, str] = EDGE) -> Structure:
        return self._structure

    def register_scratch(self, name: str, scratch: object) -> None:
        """Reports nothing."""

    def add_edge_table(self, name: str, values: Tensor) -> None:
        self._tables[name] = PlainTable(values, SINGLE, None, self.device)

    def node_table_names(self, node_type: str = NODE) -> list[str]:
        return []

    def edge_table_names(self, edge_type: tuple[str, str, str] = EDGE) -> list[str]:
        return list(self._tables)

    def edge_table(self, name: str, edge_type: tuple[str, str, str] = EDGE) -> PlainTable:
        return self._tables[name]


def assert_valid(
    store: FlatStore,
    seeds: Tensor,
    sample: Sample,
    fanouts: Sequence[int],
    *,
    replace: bool = False,
) -> None:
    """All that a sample without weights and times must keep to, whatever was drawn."""
    nodes, row, col = sample.nodes[NODE], sample.row[EDGE], sample.col[EDGE]
    assert sample.edge_ids is not None
    edges = sample.edge_ids[EDGE]
    assert torch.equal(nodes[: seeds.numel()], seeds.to(nodes))
    neighbors = nodes[seeds.numel() :]
    assert neighbors.unique().numel() == neighbors.numel()
    assert not bool(torch.isin(neighbors, nodes[: seeds.numel()]).any())
    assert bool((store.indptr[nodes[col]] <= edges).all())
    assert bool((edges < store.indptr[nodes[col] + 1]).all())
    assert torch.equal(store.indices[edges].long(), nodes[row])
    begin = target = 0
    for hop, fanout in enumerate(fanouts):
        count, targets = sample.num_sampled_edges[EDGE][hop], sample.num_sampled_nodes[NODE][hop]
        hop_col, hop_edges = col[begin : begin + count], edges[begin : begin + count]
        expanded = nodes[target : target + targets]
        degrees = store.indptr[expanded + 1] - store.indptr[expanded]
        if replace:
            counts = torch.where(degrees > 0, fanout, 0)
        else:
            counts = degrees if fanout < 0 else degrees.clamp(max=fanout)
            # Rows of hops do not mix, and an edge is sampled once by each of them.
            assert (hop_col * store.num_edges() + hop_edges).unique().numel() == count
        assert torch.equal(torch.bincount(hop_col - target, minlength=targets), counts)
        assert bool((hop_col.diff() >= 0).all())
        begin, target = begin + count, target + targets
    assert begin == row.numel()
