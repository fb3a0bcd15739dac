"""The edges of a partitioned relation in the other direction."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from peergraph.fullgraph import (
    EdgeReversal,
    PartitionedStructure,
    PartitionedTensor,
    RowLayout,
    reverse_edges,
)

_SWAPPED = {"u": "v", "v": "u", "e": "e"}
_MESSAGES = ("copy_u", "copy_e", "mul")

_Result = TypeVar("_Result")


class ReversedCsc:
    """The verbs of a structure over its reversed edges, with the features of its own edges.

    Sums at a destination are put together from the ranks that have its edges. Maxima, softmax and
    attention, for which a rank needs all edges of a node, run on edges that were moved to the ranks
    of their sources (:func:`peergraph.fullgraph.reverse_edges`) at the first call.

    Args:
        original: the edges in their own direction.
    """

    def __init__(self, original: PartitionedStructure) -> None:
        self.original = original
        self.source_layout: RowLayout = original.destination_layout
        self.destination_layout: RowLayout = original.source_layout
        self.edge_layout: RowLayout = original.edge_layout
        self.num_sources = original.num_destinations
        self.num_destinations = original.num_sources
        self.num_edges = original.num_edges
        self.device: torch.device = original.device
        self.transient = False

    def in_degrees(self) -> Tensor:
        """Returns the number of edges to each destination, [destinations]."""
        return self.original.out_degrees()

    def out_degrees(self) -> Tensor:
        """Returns the number of edges from each source, [sources]."""
        return self.original.in_degrees()

    def cached(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """Returns what `make` returned at the first call with this key."""
        return self.original.cached(("reversed", key), make)

    def spmm(
        self, message: str, reduce: str, x: Tensor | None = None, e: Tensor | None = None
    ) -> Tensor:
        """Sums or averages messages ``copy_u``, ``copy_e`` or ``mul`` at destinations."""
        if message not in _MESSAGES or reduce not in ("sum", "mean"):
            return self.moved.structure.spmm(message, reduce, x, self._on_moved_edges(e))
        sums = self.original.spmm_transposed(message, x, e)
        if reduce == "sum":
            return sums
        degrees = self.in_degrees().clamp(min=1).to(sums.dtype)
        return sums / degrees.reshape(-1, *[1] * (sums.dim() - 1))

    def spmm_transposed(
        self, message: str, x: Tensor | None = None, e: Tensor | None = None
    ) -> Tensor:
        """Sums messages at sources."""
        return self.original.spmm(message, "sum", x, e)

    def sddmm(
        self,
        op: str,
        lhs: Tensor,
        rhs: Tensor | None = None,
        lhs_target: str = "u",
        rhs_target: str = "v",
    ) -> Tensor:
        """Computes a value for each edge."""
        return self.original.sddmm(op, lhs, rhs, _SWAPPED[lhs_target], _SWAPPED[rhs_target])

    def edge_softmax(self, scores: PartitionedTensor) -> PartitionedTensor:
        """Normalises scores of edges at each destination."""
        return self.moved.from_reversed(
            self.moved.structure.edge_softmax(self.moved.to_reversed(scores))
        )

    @property
    def moved(self) -> EdgeReversal:
        """The same edges, each on the rank of its destination. Collective at the first call."""
        return reverse_edges(self.original)

    def _on_moved_edges(self, e: Any) -> PartitionedTensor | None:
        """Returns features of edges with the rows of :attr:`moved`'s structure, or None."""
        return None if e is None else self.moved.to_reversed(e)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(PartitionedStructure, name):
            raise AttributeError(name)
        self._refuse(name)

    def _refuse(self, what: str) -> NoReturn:
        raise NotImplementedError(
            f"{what} over reversed edges of a partitioned graph, whose ranks hold the in-edges of "
            "their nodes: reverse the DGLGraph before peergraph_dgl.full_graph()"
        )
