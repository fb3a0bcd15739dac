"""What compiled code passes to operators in place of a structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from peergraph.aggregate.csc import Csc
from peergraph.memory.device.capture_mode import is_capturing


@dataclass(frozen=True)
class TracedEdges:
    """Edges as tensors and sizes, by which :meth:`structures` finds their structures.

    A compiler sees the tensors and sizes only: neither offsets nor degrees are part of compiled
    code, which therefore serves all graphs.

    Args:
        finder: name of the function that finds structures: see :func:`register_finder`.
        edge_index: [2, edges] int32 or int64.
        edge_type: [edges] the relation of each edge, or None for one relation.
        relations: the relations whose edges are meant; empty without `edge_type`.
        num_destinations, num_sources: bounds of the two rows of `edge_index`.
    """

    finder: str
    edge_index: Tensor
    edge_type: Tensor | None
    relations: list[int]
    num_destinations: int
    num_sources: int

    @property
    def num_edges(self) -> int:
        """Number of edges of all relations."""
        return self.edge_index.shape[1]

    def structures(self, *, counted: bool) -> list[Csc]:
        """Returns the structure of the edges, or of each of the relations.

        Args:
            counted: whether this counts as a use of the structures (``Csc.count_use``).

        Raises:
            RuntimeError: a CUDA graph is being captured, which would keep this graph's edges.
        """
        if is_capturing(self.edge_index.device):
            raise RuntimeError(
                "compiled layers look their edges up in each call and cannot be captured in a CUDA "
                "graph: compile without mode 'reduce-overhead' and 'max-autotune'"
            )
        return _finders[self.finder](self, counted)

    def structure(self, *, counted: bool = False) -> Csc:
        """Returns the structure of the edges: see :meth:`structures`."""
        (structure,) = self.structures(counted=counted)
        return structure


_Finder = Callable[[TracedEdges, bool], list[Csc]]
_finders: dict[str, _Finder] = {}


def register_finder(name: str, find: Any) -> None:
    """Sets the function that finds the structures of :class:`TracedEdges`.

    Args:
        name: the ``finder`` of the edges that it serves.
        find: ``find(edges, counted)`` returns a list of :class:`peergraph.aggregate.Csc`.
    """
    _finders[name] = find
