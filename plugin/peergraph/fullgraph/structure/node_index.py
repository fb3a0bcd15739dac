"""The sources or the destinations of a relation's edges, as an index of node rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from peergraph.aggregate import FEATURE_DTYPES
from peergraph.aggregate.layers import without_autocast
from peergraph.fullgraph.exchange.halo import add_to_owners
from peergraph.fullgraph.exchange.local_operands import local_operands
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.structure.edge_changes import local_ends
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.fullgraph.tensor.conversions import from_local
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor

End = Literal["source", "destination"]


class NodeIndex(PartitionedTensor):
    """One row of an edge index: [edges] int64, the node at one end of each edge.

    As an index it selects rows of partitioned features of nodes, one for each edge; rows of
    sources that other ranks have are exchanged. In any other operation it acts as the partitioned
    tensor of the user's node ids, :meth:`ids`. Made with :meth:`of`.
    """

    __slots__ = ("end", "structure")

    structure: PartitionedCsc
    """The edges."""
    end: End
    """Which end of the edges."""

    @classmethod
    def of(cls, structure: PartitionedCsc, end: End) -> NodeIndex:
        """Returns the index of one end of the edges of a structure, always the same object.

        Not collective.
        """

        def make() -> NodeIndex:
            index: NodeIndex = Tensor._make_wrapper_subclass(
                cls, (structure.num_edges,), dtype=torch.int64, device=structure.device
            )
            index.structure, index.end = structure, end
            index.layout, index.partitioned_dim = structure.edge_layout, 0
            return index

        return structure.cached(("node index", end), make)

    def to_local(self) -> Tensor:
        """Returns the ids of this rank's edges."""
        return self.ids().to_local()

    def full_tensor(self) -> Tensor:
        """Returns the ids of all edges. Collective."""
        return self.ids().full_tensor()

    def ids(self) -> PartitionedTensor:
        """Returns the user's ids of the nodes, [edges], by edge. Collective at the first call."""
        return self.structure.edge_ends()[self.end == "destination"]

    @property
    def nodes(self) -> RowLayout:
        """The rows of nodes at this end."""
        if self.end == "source":
            return self.structure.source_layout
        return self.structure.destination_layout

    @property
    def local_rows(self) -> Tensor:
        """[edges of this rank]: extended rows of sources, or local rows of destinations."""
        sources, destinations = local_ends(self.structure)
        return sources if self.end == "source" else destinations

    def select_rows(self, x: PartitionedTensor, dim: int = 0) -> PartitionedTensor:
        """Returns the rows of `x` at this end of each edge. Collective; differentiable.

        Args:
            x: partitioned along `dim` as the nodes at this end.
            dim: the dimension of nodes, which becomes that of edges.

        Raises:
            ValueError: `x` has other rows.
        """
        dim = dim % x.dim()
        if x.partitioned_dim != dim or not self.nodes.same_rows(x.layout):
            raise ValueError(
                f"x must have the rows of the {self.end}s, {self.nodes}, in dimension {dim}, got "
                f"{x.layout} in dimension {x.partitioned_dim} of {list(x.shape)}"
            )
        rows = x.to_local() if dim == 0 else x.to_local().movedim(dim, 0)
        selected = self._select_local(rows)
        return from_local(
            selected if dim == 0 else selected.movedim(0, dim), self.structure.edge_layout, dim
        )

    def _select_local(self, rows: Tensor) -> Tensor:
        """Returns rows for this rank's edges, of this rank's rows of nodes."""
        if self.end == "source":
            [extended], _ = local_operands(self.structure.plan, [rows])
            assert extended is not None
            rows = extended
        if rows.dtype in FEATURE_DTYPES and rows.dim() >= 2:
            # Its gradient sums rows in a fixed order.
            target = "u" if self.end == "source" else "v"
            return without_autocast(lambda: self.structure.local.sddmm("copy", rows, None, target))
        return rows.index_select(0, self.local_rows)

    def add_to_nodes(self, rows: Tensor, dim: int = 0) -> PartitionedTensor:
        """Returns node rows of what this rank computed for the rows of its edges' ends.

        Collective for sources, where the parts of all ranks are added up. Differentiable.

        Args:
            rows: :attr:`num_local_rows` along `dim`.
            dim: the dimension of nodes.
        """
        if self.end == "source":
            rows = add_to_owners(self.structure.plan, rows.movedim(dim, 0)).movedim(0, dim)
        return from_local(rows, self.nodes, dim)

    @property
    def num_local_rows(self) -> int:
        """Rows that :attr:`local_rows` counts."""
        if self.end == "source":
            return self.structure.plan.num_extended
        return self.nodes.local_count

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"NodeIndex({self.end}s of {self.structure})"

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in SHAPE_FUNCTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        selected = _selection(func, args, kwargs)
        if selected is not None:
            x, dim, index = selected
            return index.select_rows(x, dim)
        return func(*_with_ids(args), **dict(zip(kwargs, _with_ids(kwargs.values()), strict=True)))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        raise NotImplementedError(
            f"{func} on the ends of edges of a partitioned graph: compute with their ids, "
            "edge_index[0].ids()"
        )


SHAPE_FUNCTIONS = {
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__, Tensor.is_floating_point),
    *(Tensor.ndimension, Tensor.nelement, Tensor.is_complex, Tensor.element_size, Tensor.__hash__),
    *(Tensor.is_contiguous, Tensor.stride, Tensor.is_inference, Tensor.get_device),
    *(torch.numel, torch.is_floating_point, torch.is_complex, Tensor.type),
    *(
        getattr(Tensor, name).__get__
        for name in (
            *(
                "shape",
                "dtype",
                "device",
                "layout",
                "ndim",
                "is_cuda",
                "is_sparse",
                "requires_grad",
            ),
            *("is_leaf", "grad_fn", "grad", "is_quantized", "is_meta", "is_mkldnn", "_version"),
            *("is_sparse_csr", "itemsize", "nbytes", "is_nested", "is_cpu"),
        )
    ),
}
"""Functions and attributes that read nothing of a tensor's values."""


def _with_ids(values: Iterable[Any]) -> list[Any]:
    """Returns values with partitioned ids in the place of indices, also within lists."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, NodeIndex):
            found.append(value.ids())
        elif type(value) in (list, tuple):
            found.append(type(value)(_with_ids(value)))
        else:
            found.append(value)
    return found


def _selection(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[PartitionedTensor, int, NodeIndex] | None:
    """Returns features, dimension and index of a call that selects rows by one index."""
    if func is Tensor.__getitem__:
        x, index = args
        dim = 0
        if isinstance(index, tuple) and len(index) == 1:
            index = index[0]
    elif func in (Tensor.index_select, torch.index_select):
        given = dict(zip(("input", "dim", "index"), args, strict=False)) | kwargs
        x, dim, index = given["input"], given["dim"], given["index"]
    else:
        return None
    if not isinstance(index, NodeIndex) or not isinstance(x, PartitionedTensor):
        return None
    return x, dim, index
