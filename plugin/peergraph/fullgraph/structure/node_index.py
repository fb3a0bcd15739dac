"""The sources or the destinations of a relation's edges, as an index of node rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from peergraph.aggregate import FEATURE_DTYPES, Csc
from peergraph.aggregate.layers import without_autocast
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.structure.edge_call import NONE, EdgeCall, Operands
from peergraph.fullgraph.structure.partitioned_structure import PartitionedStructure, kept_ends
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.without_memory import make_without_memory

End = Literal["source", "destination"]


class NodeIndex(PartitionedTensor):
    """One row of an edge index: [edges] int64, the node at one end of each edge.

    As an index it selects rows of partitioned features of nodes, one for each edge; rows of
    sources that other ranks have are exchanged. In any other operation it acts as the partitioned
    tensor of the user's node ids, :meth:`ids`; it cannot be written. Made with :meth:`of`.
    """

    __slots__ = ("end", "structure")

    structure: PartitionedStructure
    """The edges."""
    end: End
    """Which end of the edges."""

    @classmethod
    def of(cls, structure: PartitionedStructure, end: End) -> NodeIndex:
        """Returns the index of one end of the edges of a structure, always the same object.

        Not collective.
        """

        def make() -> NodeIndex:
            index = make_without_memory(
                cls, (structure.num_edges,), dtype=torch.int64, device=structure.device
            )
            index.structure, index.end = structure, end
            index.row_layout, index.partitioned_dim = structure.edge_layout, 0
            return index

        return structure.cached(("node index", end), make)

    def to_local(self) -> Tensor:
        """Returns the ids of this rank's edges."""
        return self.ids().to_local()

    def full_tensor(self) -> Tensor:
        """Returns the ids of all edges. Collective."""
        return self.shared_ids().full_tensor()

    def ids(self) -> PartitionedTensor:
        """Returns the user's ids of the nodes, [edges], by edge. Collective at the first call.

        They are a copy: writes to it do not change the graph.
        """
        return self.shared_ids().clone()  # type: ignore[return-value]

    def shared_ids(self) -> PartitionedTensor:
        """Returns what :meth:`ids` copies. It must not be changed."""
        return self.structure.edge_ends()[self.end == "destination"]

    @property
    def nodes(self) -> RowLayout:
        """The rows of nodes at this end."""
        if self.end == "source":
            return self.structure.source_layout
        return self.structure.destination_layout

    def select_rows(self, x: PartitionedTensor, dim: int = 0) -> PartitionedTensor:
        """Returns the rows of `x` at this end of each edge. Collective; differentiable.

        Args:
            x: partitioned along `dim` as the nodes at this end.
            dim: the dimension of nodes, which becomes that of edges.

        Raises:
            ValueError: `x` has other rows.
        """
        dim = dim % x.dim()
        rows = {"x": x if dim == 0 else x.movedim(dim, 0)}
        if self.end == "source":
            call = EdgeCall(_at_sources, sources=rows, result="edge")
        else:
            call = EdgeCall(_at_destinations, destinations=rows, result="edge")
        selected = self.structure.on_edges(call)
        return selected if dim == 0 else selected.movedim(0, dim)  # type: ignore[return-value]

    def reduce_edges(
        self,
        function: Callable[..., Tensor],
        x: PartitionedTensor,
        dim: int = 0,
        *,
        parameters: Operands = NONE,
    ) -> PartitionedTensor:
        """Reduces rows of edges at the nodes of this end. Collective; differentiable.

        The parts that ranks have of the result of a source are added up.

        Args:
            function: called with plain rows of edges, the node row of each edge as `index`, the
                number of node rows as `dim_size`, `dim`, and the parameters by name; returns node
                rows in the dimension `dim`.
            x: partitioned along `dim` as the edges.
            dim: the dimension of edges, which becomes that of nodes.
            parameters: see :class:`EdgeCall`.
        """
        dim = dim % x.dim()
        end = self.end

        def run(csc: Csc, x: Tensor, **parameters: Tensor) -> Tensor:
            count = csc.num_sources if end == "source" else csc.num_destinations
            index = kept_ends(csc)[end == "destination"]
            rows = x if dim == 0 else x.movedim(0, dim)
            reduced = function(rows, index=index, dim_size=count, dim=dim, **parameters)
            return reduced if dim == 0 else reduced.movedim(dim, 0)

        rows = {"x": x if dim == 0 else x.movedim(dim, 0)}
        reduced = self.structure.on_edges(
            EdgeCall(run, edges=rows, parameters=parameters, result=end)
        )
        return reduced if dim == 0 else reduced.movedim(0, dim)  # type: ignore[return-value]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"NodeIndex({self.end}s of {self.structure})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in SHAPE_FUNCTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        _refuse_writes(func, args, kwargs)
        selected = node_selection(func, args, kwargs)
        if selected is not None:
            x, dim, index = selected
            return index.select_rows(x, dim)
        return func(*_with_ids(args), **dict(zip(kwargs, _with_ids(kwargs.values()), strict=True)))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(
            f"{func} on the ends of edges of a partitioned graph: compute with their ids, "
            "edge_index[0].ids()"
        )


def _refuse_writes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises RuntimeError if a function writes to the edges: their structure would stay."""
    name = func.__name__
    writes = name in _WRITES or (name.endswith("_") and not name.endswith("__"))
    if (writes and isinstance(args[0], NodeIndex)) or isinstance(kwargs.get("out"), NodeIndex):
        raise RuntimeError(
            f"{name}: the edges of a partitioned graph cannot be written; change a copy of their "
            "ids, edge_index[0].ids(), or make another graph"
        )


_WRITES = {
    "__setitem__",
    "__set__",
    *(f"__i{name}__" for name in ("add", "sub", "mul", "floordiv", "truediv", "div", "mod", "pow")),
    *(f"__i{name}__" for name in ("and", "or", "xor", "lshift", "rshift")),
}


def _at_sources(csc: Csc, x: Tensor) -> Tensor:
    return _rows_at(csc, x, "u")


def _at_destinations(csc: Csc, x: Tensor) -> Tensor:
    return _rows_at(csc, x, "v")


def _rows_at(csc: Csc, x: Tensor, target: str) -> Tensor:
    if x.dtype in FEATURE_DTYPES and x.dim() >= 2:
        # Its gradient sums rows in a fixed order.
        return without_autocast(lambda: csc.sddmm("copy", x, None, target))
    return x.index_select(0, kept_ends(csc)[target == "v"])


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
    with_ids: list[Any] = []
    for value in values:
        if isinstance(value, NodeIndex):
            with_ids.append(value.ids())
        elif type(value) in (list, tuple):
            with_ids.append(type(value)(_with_ids(value)))
        else:
            with_ids.append(value)
    return with_ids


def node_selection(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[PartitionedTensor, int, NodeIndex] | None:
    """Returns features, dimension and index of a call that selects rows by one node index."""
    if func is Tensor.__getitem__:
        x, index = args
        dim = 0
        if isinstance(index, tuple) and len(index) == 1:
            index = index[0]
    elif func in (Tensor.index_select, torch.index_select):
        arguments = dict(zip(("input", "dim", "index"), args, strict=False)) | kwargs
        x, dim, index = arguments["input"], arguments["dim"], arguments["index"]
    else:
        return None
    if not isinstance(index, NodeIndex) or not isinstance(x, PartitionedTensor):
        return None
    return x, dim, index
