"""Sparse matrices (``adj_t`` and ``adj``) whose entries stay in the store."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn, TypeVar

import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.index import index2ptr
from torch_geometric.typing import SparseTensor
from typing_extensions import Self

from peergraph.store import EdgeType, Store, StoreTensor, TableTensor, implements

from ..compat import coo_tensors

T = TypeVar("T")

ADJACENCY_KEYS = ("adj", "adj_t")
"""Attributes that hold edges as a matrix, in the order in which PyG looks for them."""


@dataclass(frozen=True)
class SparseLayout:
    """Describes a matrix of edges without its entries. Edge ids are positions of entries.

    Args:
        edge_type: the type of its edges.
        transposed: whether rows are destinations (``adj_t``) or sources (``adj``).
        layout: ``torch.sparse_csr``, ``torch.sparse_csc``, ``torch.sparse_coo``, or ``None`` for a
            ``SparseTensor`` of torch-sparse.
        dtype: dtype of the values; ``None`` for a ``SparseTensor`` without values.
        values: name of the edge table with the values; ``None``: all are 1, or there are none.
        coalesced: ``is_coalesced()`` of a COO matrix.
    """

    edge_type: EdgeType
    transposed: bool
    layout: torch.layout | None
    dtype: torch.dtype | None
    values: str | None = None
    coalesced: bool = True

    def row_col(self, source: T, destination: T) -> tuple[T, T]:
        """Returns the value for rows and the value for columns."""
        return (destination, source) if self.transposed else (source, destination)

    def tensor(self, store: Store) -> Any:
        """Returns the matrix over the store: an :class:`AdjacencyTensor` or a ``SparseTensor``."""
        if self.layout is not None:
            return AdjacencyTensor(store, self)
        if not torch_geometric.typing.WITH_TORCH_SPARSE:
            raise ImportError("adj_t of rank 0 is a SparseTensor, but torch-sparse is missing here")
        return SparseAdjacency(store, self)

    def materialize(self, store: Store, device: torch.device) -> Any:
        """Returns the matrix of all edges. Synchronises."""
        source, destination = store.edge_index(self.edge_type).to(device)
        row, col = self.row_col(source, destination)
        values = self._ones(row)
        if self.values is not None:
            values = TableTensor(store, self.edge_type, self.values).materialize(device)
        sizes = self.row_col(*_nodes(store, self.edge_type))
        return self._matrix(row, col, values, sizes, self.coalesced)

    def of_batch(
        self, store: Store, row: Tensor, col: Tensor, edge_ids: Any, nodes: tuple[int, int]
    ) -> Any:
        """Returns the matrix of sampled edges, sorted; parallel edges are separate entries.
        Synchronises for COO.

        Args:
            row, col: ``[edges]`` local ids of sources and destinations.
            edge_ids: ``[edges]`` user ids; ``None`` if the sampler returns no edge ids.
            nodes: number of sources and of destinations of the batch.

        Raises:
            ValueError: the layout has values, and there are no edge ids by which to look them up.
        """
        first, second = self.row_col(*(ends.to(store.device, torch.int64) for ends in (row, col)))
        sizes = self.row_col(*nodes)
        by_column = self.layout is torch.sparse_csc
        keys = second * sizes[0] + first if by_column else first * sizes[1] + second
        keys, order = keys.sort(stable=True)
        # Torch assumes that coalesced matrices have no parallel edges. Only COO has the flag.
        coalesced = self.layout is not torch.sparse_coo or not bool((keys.diff() == 0).any())
        values = self._ones(first)
        if self.values is not None and edge_ids is None:
            if self.layout is not None:
                raise ValueError(f"the sampler gives no edge ids, by which {self.values} is read")
            values = None
        elif self.values is not None:
            table = TableTensor(store, self.edge_type, self.values)
            values = table.index_select(0, edge_ids.to(store.device)[order])
        return self._matrix(first[order], second[order], values, sizes, coalesced)

    def _ones(self, like: Tensor) -> Tensor | None:
        return None if self.dtype is None else torch.ones_like(like, dtype=self.dtype)

    def _matrix(
        self, row: Tensor, col: Tensor, values: Any, sizes: tuple[int, int], coalesced: bool
    ) -> Any:
        if self.layout is None:
            return SparseTensor(
                row=row, col=col, value=values, sparse_sizes=sizes, is_sorted=True, trust_data=True
            )
        shape = (*sizes, *values.shape[1:])
        # Unchecked: torch's invariants forbid parallel edges, which products add up all the same.
        if self.layout is torch.sparse_coo:
            return torch.sparse_coo_tensor(
                torch.stack([row, col]),
                values,
                shape,
                is_coalesced=coalesced,
                check_invariants=False,
            )
        if self.layout is torch.sparse_csc:
            row, col, count = col, row, sizes[1]
        else:
            count = sizes[0]
        return torch.sparse_compressed_tensor(
            index2ptr(row, count),
            col,
            values,
            shape,
            layout=self.layout,
            check_invariants=False,
        )


def _nodes(store: Store, edge_type: EdgeType) -> tuple[int, int]:
    return store.num_nodes(edge_type[0]), store.num_nodes(edge_type[2])


def _shape(store: Store, sparse_layout: SparseLayout) -> tuple[int, ...]:
    sizes = sparse_layout.row_col(*_nodes(store, sparse_layout.edge_type))
    if sparse_layout.values is None:
        return sizes
    return (*sizes, *store.edge_table(sparse_layout.values, sparse_layout.edge_type).shape[1:])


class AdjacencyTensor(StoreTensor):
    """A sparse matrix of torch over the edges of one type, in the layout of the shared matrix.

    The store keeps it as CSC, so every operation reads it whole. Indices are int64.
    """

    sparse_layout: SparseLayout

    def __new__(cls, store: Store, sparse_layout: SparseLayout) -> Self:
        """Args:
        store: the store with the edges.
        sparse_layout: the matrix.
        """
        tensor = cls._wrap(
            store, _shape(store, sparse_layout), sparse_layout.dtype, dispatch_layout=True
        )
        tensor.sparse_layout = sparse_layout
        return tensor

    def _arguments(self) -> tuple[Any, ...]:
        return self.store, self.sparse_layout

    def materialize(self, device: torch.device | None = None) -> Tensor:
        """Returns the matrix as a plain tensor on ``device`` (default: the store's).
        Synchronises.
        """
        matrix: Tensor = self.sparse_layout.materialize(
            self.store, self.device if device is None else device
        )
        return matrix

    def _source(self) -> str:
        return f"{self.sparse_layout.edge_type!r}, {self.sparse_layout.layout}"


@implements(torch.ops.prim.layout.default)
def _layout(tensor: Any) -> Any:
    return tensor.sparse_layout.layout if isinstance(tensor, AdjacencyTensor) else NotImplemented


@implements(torch.ops.aten._nnz.default)
def _nnz(tensor: Any) -> Any:
    if not isinstance(tensor, AdjacencyTensor):
        return NotImplemented
    return tensor.store.num_edges(tensor.sparse_layout.edge_type)


@implements(torch.ops.aten.is_coalesced.default)
def _is_coalesced(tensor: Any) -> Any:
    return tensor.sparse_layout.coalesced if isinstance(tensor, AdjacencyTensor) else NotImplemented


class SparseAdjacency(SparseTensor):  # type: ignore[misc]
    """A ``SparseTensor`` of torch-sparse over the edges of one type; its methods read all of it.

    Results have separate values; ``pickle`` and ``torch.save`` write the values, and processes
    of ``multiprocessing`` get a handle. ``set_value_``, ``fill_value_`` and ``requires_grad_``,
    which would change a copy, raise ``NotImplementedError``.
    """

    def __init__(self, store: Store, sparse_layout: SparseLayout) -> None:
        self.store = store
        self.sparse_layout = sparse_layout

    @property
    def storage(self) -> Any:
        """The storage that torch-sparse computes with: read at every use, since it takes memory."""
        return self.sparse_layout.materialize(self.store, self.store.device).storage

    def nnz(self) -> int:
        """Returns the number of edges."""
        return self.store.num_edges(self.sparse_layout.edge_type)

    def sparse_sizes(self) -> tuple[int, int]:
        """Returns the numbers of rows and columns."""
        return self.sparse_layout.row_col(*_nodes(self.store, self.sparse_layout.edge_type))

    def sparse_size(self, dim: int) -> int:
        """Returns the number of rows or columns."""
        return self.sparse_sizes()[dim]

    def device(self) -> torch.device:
        """Returns the device of results."""
        return self.store.device

    def set_value_(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises ``NotImplementedError``: the values cannot be changed."""
        raise NotImplementedError(
            "a shared SparseTensor is not changed in place; set_value, fill_value and clone give "
            "one of your own"
        )

    fill_value_ = requires_grad_ = set_value_

    def is_shared(self) -> bool:
        """Always true."""
        return True

    def share_memory_(self) -> SparseAdjacency:
        """Does nothing: the entries are shared."""
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.sparse_layout.materialize(self.store, torch.device("cpu")).__reduce_ex__(
            protocol
        )

    def reduce_to_process(self) -> Any:
        """Returns a handle: another process of the machine reads the same memory."""
        return type(self), (self.store, self.sparse_layout)

    def __copy__(self) -> SparseAdjacency:
        return type(self)(self.store, self.sparse_layout)

    def __deepcopy__(self, memo: Any) -> SparseAdjacency:
        # Nothing can be written to it.
        return type(self)(self.store, self.sparse_layout)


ForkingPickler.register(SparseAdjacency, SparseAdjacency.reduce_to_process)


ADJACENCY_TYPES = (AdjacencyTensor, SparseAdjacency)


def component_tensors(tensor: Tensor) -> list[Tensor]:
    """Returns the dense tensors that make up a tensor of any layout."""
    if tensor.layout is torch.sparse_coo:
        return coo_tensors(tensor)
    if tensor.layout is torch.sparse_csr:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout is torch.sparse_csc:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]
