"""The base class of the graph indices that Peergraph passes to DGL's graph classes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch
from dgl.graph_index import from_coo
from dgl.heterograph_index import HeteroGraphIndex
from dgl.utils import to_dgl_context
from torch import Tensor

from .edge_list import Edges

EdgesT = TypeVar("EdgesT", bound=Edges)
FORMATS = ("coo", "csr", "csc")


class GraphIndex(Generic[EdgesT]):
    """Types and counts of a graph's structure, with the methods of DGL's HeteroGraphIndex.

    Args:
        metagraph: DGL's graph of node types (nodes) and relations (edges).
        num_nodes: number of nodes of each type.
        edge_lists: edges of each relation, all on one device and of one dtype.
    """

    def __init__(
        self, metagraph: Any, num_nodes: Sequence[int], edge_lists: Sequence[EdgesT]
    ) -> None:
        self.metagraph = metagraph
        self._num_nodes = [int(count) for count in num_nodes]
        self.edge_lists = list(edge_lists)
        self._cache: dict[Any, Any] = {}

    # DGLGraph accepts only a HeteroGraphIndex, which this property claims to be (see compat.py).
    # The C library looks at the real type, and so raises instead of following an invalid handle.
    @property
    def __class__(self) -> Any:
        return HeteroGraphIndex

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise TypeError("the class of a graph index cannot be changed")

    @property
    def handle(self) -> Any:
        raise TypeError(f"DGL's C library cannot take {self._describe()}")

    def _describe(self) -> str:
        """Names the kind of graph and the way to another, for errors."""
        return f"a graph on {self.device}: move it by .to('cpu')"

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.edge_lists[0].device if self.edge_lists else torch.device("cpu")

    @property
    def ctx(self) -> Any:
        return to_dgl_context(self.device)

    @property
    def dtype(self) -> str:
        is_int = bool(self.edge_lists) and self.edge_lists[0].idtype == torch.int32
        return "int32" if is_int else "int64"

    def number_of_ntypes(self) -> int:
        return len(self._num_nodes)

    def number_of_etypes(self) -> int:
        return len(self.edge_lists)

    def num_nodes(self, ntype: int) -> int:
        return self._num_nodes[ntype]

    def num_edges(self, etype: int) -> int:
        return self.edge_lists[etype].num_edges

    number_of_nodes = num_nodes
    number_of_edges = num_edges
    bits_needed = HeteroGraphIndex.bits_needed

    def is_metagraph_unibipartite(self) -> bool:
        sources, destinations = self._ends()
        return not set(sources) & set(destinations)

    def _ends(self) -> tuple[list[int], list[int]]:
        """Returns the source types and the destination types of the relations."""
        ends = [self.metagraph.find_edge(etype) for etype in range(len(self.edge_lists))]
        return [source for source, _ in ends], [destination for _, destination in ends]

    def in_degrees(self, etype: int, v: Tensor) -> Tensor:
        return self.edge_lists[etype].in_degrees()[v.long()]

    def out_degrees(self, etype: int, v: Tensor) -> Tensor:
        return self.edge_lists[etype].out_degrees()[v.long()]

    def formats(self, formats: str | Sequence[str] | None = None) -> Any:
        """All formats are computed when needed; a selection has no effect."""
        return {"created": list(FORMATS), "not created": []} if formats is None else self

    def create_formats_(self) -> None:
        """All formats are computed when needed."""

    def is_readonly(self) -> bool:
        return True

    def is_pinned(self) -> bool:
        return False

    def pin_memory_(self) -> None:
        raise NotImplementedError("pin_memory_: a graph made of torch tensors is not pinned")

    def has_nodes(self, ntype: int, vids: Tensor) -> Tensor:
        return ((vids >= 0) & (vids < self.num_nodes(ntype))).to(vids.dtype)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(HeteroGraphIndex, name):
            raise NotImplementedError(f"{name} is not implemented for {self._describe()}")
        raise AttributeError(name)


def is_graph_index(index: Any) -> bool:
    """Returns whether an index is a :class:`GraphIndex`; `isinstance` is misled by its
    ``__class__``.
    """
    return issubclass(type(index), GraphIndex)


@functools.cache
def unit_metagraph(num_ntypes: int) -> Any:
    """DGL's metagraph of one relation, within a type or between two."""
    return from_coo(num_ntypes, [0], [num_ntypes - 1], True)
