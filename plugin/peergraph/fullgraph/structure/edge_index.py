"""The edges of a partitioned graph where scripts hold a list of edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from peergraph.fullgraph.structure.edge_changes import select_edge_rows, select_edges
from peergraph.fullgraph.structure.edge_reversal import reverse_edges
from peergraph.fullgraph.structure.node_index import NodeIndex
from peergraph.fullgraph.structure.partitioned_structure import PartitionedStructure
from peergraph.fullgraph.tensor.conversions import distribute
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.uncompiled import Uncompiled
from peergraph.without_memory import make_without_memory


class PartitionedEdgeIndex(Uncompiled):
    """Stands for the list of edges [2, edges] of a partitioned graph, without values.

    Layers take the edges from :attr:`structure`. Shape, dtype (int64) and device are those of a
    list of edges. ``edge_index[0]`` and ``edge_index[1]``, also by ``row, col = edge_index``, are
    the sources and the destinations: a :class:`NodeIndex`, which selects rows of nodes and else is
    the users' ids, partitioned as features of edges are. ``edge_index[:, mask]`` is a list of the
    edges that a mask selects. ``edge_index.flip(0)`` has sources and destinations swapped; of its
    edges, whose features lie on other ranks, see :func:`reverse_edges`. Any other operation raises
    NotImplementedError.

    Args:
        structure: the edges.
        edge_weight: [edges] partitioned as the edges: the values of the matrix that the list of
            edges stands for; None for a list, and for a matrix without values.
    """

    __slots__ = ("edge_weight", "structure")

    structure: PartitionedStructure
    """The edges, partitioned by destination."""
    edge_weight: PartitionedTensor | None
    """The value of each edge in the matrix that this stands for, or None."""

    @staticmethod
    def __new__(
        cls, structure: PartitionedStructure, edge_weight: PartitionedTensor | None = None
    ) -> PartitionedEdgeIndex:
        edge_index = make_without_memory(
            cls, (2, structure.num_edges), dtype=torch.int64, device=structure.device
        )
        edge_index.structure = structure
        edge_index.edge_weight = edge_weight
        return edge_index

    def __init__(
        self, structure: PartitionedStructure, edge_weight: PartitionedTensor | None = None
    ) -> None:
        super().__init__()

    def __getitem__(self, index: Any) -> Any:
        """Returns sources (0) or destinations (1), flipped edges ([1, 0]), or those of a mask.

        The mask is bool [edges], partitioned as features of edges are, or plain and equal on all
        ranks; to select edges is collective.
        """
        if isinstance(index, tuple) and len(index) == 2:
            if index[0] == slice(None) and isinstance(index[1], Tensor):
                return self._select(index[1])
            if index[1] in (slice(None), ...):
                index = index[0]
        if type(index) is list and index == [1, 0]:
            return self._flip()
        if type(index) is not int or not -2 <= index < 2:
            _refuse(f"edge_index[{index!r}]")
        return self.unbind()[index]

    def _select(self, mask: Tensor) -> PartitionedEdgeIndex:
        if mask.dtype != torch.bool:
            _refuse("edge_index[:, ids]")
        if not isinstance(mask, PartitionedTensor):
            mask = distribute(mask, self.structure.edge_layout)
        chosen = select_edges(self.structure, mask)
        if chosen is self.structure:
            return self
        weight = self.edge_weight
        return PartitionedEdgeIndex(
            chosen, None if weight is None else select_edge_rows(weight, chosen)
        )

    def _flip(self) -> PartitionedEdgeIndex:
        reversal, weight = reverse_edges(self.structure), self.edge_weight
        return PartitionedEdgeIndex(
            reversal.structure, None if weight is None else reversal.to_reversed(weight)
        )

    def __iter__(self) -> Iterator[NodeIndex]:
        return iter(self.unbind())

    def __len__(self) -> int:
        return 2

    def unbind(self, dim: int = 0) -> tuple[NodeIndex, ...]:
        """Returns the sources and the destinations of the edges, [edges] int64 each."""
        if dim not in (0, -2):
            _refuse(f"edge_index.unbind({dim})")
        return NodeIndex.of(self.structure, "source"), NodeIndex.of(self.structure, "destination")

    def __copy__(self) -> PartitionedEdgeIndex:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PartitionedEdgeIndex:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        _refuse("pickling")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"PartitionedEdgeIndex({self.structure})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        edge_index = args[0] if args else None
        if isinstance(edge_index, PartitionedEdgeIndex):
            options = kwargs or {}
            if func in _SAME or (func is _VIEW and list(args[1]) == list(edge_index.shape)):
                return PartitionedEdgeIndex(edge_index.structure, edge_index.edge_weight)
            if func is torch.ops.aten.flip.default and args[1] in ([0], [-2]):
                return edge_index._flip()
            if func is torch.ops.aten._to_copy.default and _keeps(edge_index, options):
                return PartitionedEdgeIndex(edge_index.structure, edge_index.edge_weight)
        _refuse(str(func))


_SAME = (
    torch.ops.aten.alias.default,
    torch.ops.aten.clone.default,
    torch.ops.aten.detach.default,
    torch.ops.aten.view_as.default,
)
# autograd makes one of an argument that a function returns, as those of backward hooks do.
_VIEW = torch.ops.aten.view.default


def _keeps(edge_index: PartitionedEdgeIndex, options: dict[str, Any]) -> bool:
    """Returns whether a copy with these options has the same dtype and device."""
    device = torch.device(options.get("device") or edge_index.device)
    same_device = device == edge_index.device or (
        device.type == edge_index.device.type and device.index is None
    )
    return same_device and (options.get("dtype") or torch.int64) == torch.int64


def _refusing(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        _refuse(name)

    refuse.__doc__ = f"Not implemented: these edges have no memory for ``{name}`` to read."
    return refuse


# Methods that read memory, which these edges do not have: they crash, or return anything.
for _name in (
    *("apply_", "map_", "map2_", "data_ptr", "numpy", "share_memory_", "tolist"),
    *("__array__", "__dlpack__"),
):
    setattr(PartitionedEdgeIndex, _name, _refusing(_name))


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(
        f"{what} is not implemented for the edges of a partitioned graph: layers take them from "
        "edge_index.structure, edge_index[0] and edge_index[1] are the ids of this rank's edges; "
        "prepare edges (self loops, filters, transforms) before peergraph's full_graph"
    )
