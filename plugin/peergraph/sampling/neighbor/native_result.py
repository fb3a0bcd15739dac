"""The arrays of a sample, as the compiled module returns them, cut into a tensor for each type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from peergraph.memory.device.launching import Buffers
from peergraph.sampling.sample import EdgeType, NodeType


class NativeResult(NamedTuple):
    """Addresses of arrays with the values of all types, one after the other; 0: no array.

    Args:
        nodes, batch, duplicates: of the nodes of all types.
        edge_index: of all relations, the sources of each before its destinations.
        edge_ids: of all relations.
        offsets: by hop, the `indptr` of all relations.
        num_nodes: by type, seeds and new nodes of each hop.
        num_edges: by relation, edges of each hop.
        first_target, num_targets: by relation and hop.
    """

    nodes: int
    batch: int
    duplicates: int
    edge_index: int
    edge_ids: int
    offsets: list[int]
    num_nodes: list[list[int]]
    num_edges: list[list[int]]
    first_target: list[list[int]]
    num_targets: list[list[int]]


class ResultArrays:
    """Cuts the arrays of a result into tensors.

    The tensors of one array share memory, but each has a version of its own: what is written to one
    of them makes no other invalid for a gradient.
    """

    def __init__(
        self,
        result: NativeResult,
        buffers: Buffers,
        node_types: Iterable[NodeType],
        edge_types: Iterable[EdgeType],
    ) -> None:
        self.result = result
        self._buffers = buffers
        self._node_types = list(node_types)
        self._edge_types = list(edge_types)

    def by_node_type(
        self, address: int, dtype: torch.dtype, num_nodes: Sequence[int]
    ) -> dict[NodeType, Tensor]:
        """Returns the values of the nodes of each type."""
        return dict(zip(self._node_types, self._cut(address, dtype, num_nodes), strict=True))

    def by_edge_type(
        self, address: int, dtype: torch.dtype, num_edges: Sequence[int]
    ) -> dict[EdgeType, Tensor]:
        """Returns the values of the edges of each relation."""
        return dict(zip(self._edge_types, self._cut(address, dtype, num_edges), strict=True))

    def ends(
        self, dtype: torch.dtype, num_edges: Sequence[int]
    ) -> tuple[dict[EdgeType, Tensor], dict[EdgeType, Tensor]]:
        """Returns the sources and the destinations of the edges of each relation."""
        sizes = [count for count in num_edges for _ in range(2)]
        ends = self._cut(self.result.edge_index, dtype, sizes)
        row = dict(zip(self._edge_types, ends[::2], strict=True))
        return row, dict(zip(self._edge_types, ends[1::2], strict=True))

    def indptr(self) -> dict[EdgeType, list[Tensor]]:
        """Returns the `indptr` of each relation and hop."""
        targets = self.result.num_targets
        by_hop = [
            self._cut(address, torch.int64, [counts[hop] + 1 for counts in targets])
            for hop, address in enumerate(self.result.offsets)
        ]
        if not by_hop:
            return {t: [] for t in self._edge_types}
        return dict(zip(self._edge_types, map(list, zip(*by_hop, strict=True)), strict=True))

    def first_target(self) -> dict[EdgeType, list[int]]:
        """Returns the row of the first target of each relation and hop."""
        return dict(zip(self._edge_types, self.result.first_target, strict=True))

    def _cut(self, address: int, dtype: torch.dtype, sizes: Sequence[int]) -> Sequence[Tensor]:
        array = self._buffers.tensor(address, dtype, sum(sizes))
        if len(sizes) == 1:
            return [array]
        return [piece.data for piece in torch.split(array, list(sizes))]
