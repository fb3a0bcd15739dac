"""A DGL graph as GraphBolt's sampling graph, sampled by DGL's C library.

GraphBolt's own (`FusedCSCSamplingGraph`) needs a native library for the installed torch.
"""

from __future__ import annotations

from typing import Any

import dgl
import dgl.graphbolt as gb
import torch
from torch import Tensor


class LibrarySamplingGraph(gb.SamplingGraph):  # type: ignore[misc]
    """Homogeneous; serves ``sample_neighbor``."""

    node_type_to_id = None
    edge_type_to_id = None

    def __init__(self, g: Any) -> None:
        super().__init__()
        self._g = g

    def __repr__(self) -> str:
        return f"LibrarySamplingGraph({self._g!r})"

    @property
    def num_nodes(self) -> int:
        return int(self._g.num_nodes())

    @property
    def num_edges(self) -> int:
        return int(self._g.num_edges())

    def sample_neighbors(
        self, nodes: Tensor, fanouts: Tensor, replace: bool = False, probs_name: str | None = None
    ) -> gb.SampledSubgraphImpl:
        """In-edges of `nodes`, grouped by them."""
        frontier = dgl.sampling.sample_neighbors(
            self._g, nodes, int(fanouts[0]), prob=probs_name, replace=replace
        )
        source, destination = frontier.in_edges(nodes)
        counts = frontier.in_degrees(nodes)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        assert destination.numel() == int(indptr[-1])
        return gb.SampledSubgraphImpl(
            sampled_csc=gb.CSCFormatBase(indptr=indptr, indices=source),
            original_edge_ids=None,
        )
