"""Splits a user's ``adj_t`` or ``adj`` into its edges, their values, and its layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.index import ptr2index
from torch_geometric.typing import SparseTensor

from peergraph.store import EdgeSource, EdgeType, NodeType

from .sparse_adjacency import ADJACENCY_KEYS, AdjacencyTensor, SparseLayout, component_tensors

_LAYOUTS = (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo)


@dataclass(frozen=True)
class MatrixParts:
    """The parts of a matrix. Edge ids are positions of entries."""

    edges: EdgeSource
    tables: dict[str, Tensor]
    sparse_layout: SparseLayout


def matrix_key(storage: Any) -> str | None:
    """Returns the name of the attribute that holds a storage's edges as a matrix; None without one.

    Raises:
        ValueError: there are two such attributes.
    """
    keys = [key for key in ADJACENCY_KEYS if key in storage]
    if len(keys) > 1:
        raise ValueError("'adj' and 'adj_t' both hold edges; keep one of them")
    return keys[0] if keys else None


def read_matrix(
    storage: Any, key: str, edge_type: EdgeType, num_nodes: Mapping[NodeType, int]
) -> MatrixParts:
    """Splits an ``adj_t`` or ``adj`` into its parts.

    Raises:
        NotImplementedError: it is not a sparse matrix, has another layout, or requires gradients.
        ValueError: its size does not fit the numbers of nodes.
    """
    value = storage[key]
    if isinstance(value, AdjacencyTensor):
        value = value.materialize(torch.device("cpu"))
    if isinstance(value, SparseTensor):
        sizes, layout, coalesced = tuple(value.sparse_sizes()), None, True
        rows, col, values = value.csr()
        compressed = True
    elif isinstance(value, Tensor) and value.layout in _LAYOUTS:
        sizes, layout = tuple(value.shape[:2]), value.layout
        coalesced = layout is not torch.sparse_coo or value.is_coalesced()
        rows, col, values = _entries(value)
        compressed = layout is not torch.sparse_coo
    else:
        what = value.layout if isinstance(value, Tensor) else type(value).__name__
        raise NotImplementedError(
            f"'{key}' is shared as torch.sparse_csr, torch.sparse_csc, torch.sparse_coo or a "
            f"SparseTensor of torch-sparse, got {what}; delete it, and keep edge_index"
        )
    if any(isinstance(v, Tensor) and v.requires_grad for v in (value, values)):
        raise NotImplementedError(f"'{key}' requires gradients; a shared matrix cannot be trained")
    transposed = key == "adj_t"
    expected = (num_nodes.get(edge_type[0]), num_nodes.get(edge_type[2]))
    expected = expected[::-1] if transposed else expected
    if sizes != expected:
        raise ValueError(f"'{key}' must be {list(expected)} by its nodes, got {list(sizes)}")
    name = None if values is None or _all_ones(values) else f"{key}_value"
    sparse_layout = SparseLayout(
        edge_type, transposed, layout, None if values is None else values.dtype, name, coalesced
    )
    by_row = layout is not torch.sparse_csc
    edges = _edge_source(rows.cpu(), col.cpu(), compressed, by_row is transposed)
    return MatrixParts(edges, {} if name is None else {name: values.detach().cpu()}, sparse_layout)


def check_same_edges(key: str, edges: EdgeSource, edge_index: Tensor) -> None:
    """Raises ``ValueError`` unless the edges are those of ``edge_index``, in that order."""
    if edges.coo is None:
        assert edges.csc is not None
        indptr, indices = edges.csc
        coo = torch.stack([indices, ptr2index(indptr).to(indices.dtype)])
    else:
        coo = edges.coo
    if coo.shape != edge_index.shape or not bool((coo == edge_index).all()):
        raise ValueError(
            f"edge_index must have the edges of '{key}' in the order of its entries, as "
            "ToSparseTensor(remove_edge_index=False) leaves it; delete one of them"
        )


def check_edge_attr(
    key: str, edges: EdgeSource, tables: Mapping[str, Any], name: str, value: Any
) -> None:
    """Raises ``ValueError`` for an edge attribute that does not fit the entries of a matrix."""
    if value.shape[0] != edges.num_edges:
        raise ValueError(
            f"'{name}' has {value.shape[0]} rows, '{key}' {edges.num_edges} entries: "
            "ToSparseTensor merges parallel edges in matrices of torch, and attributes are left "
            "over; coalesce() the data before"
        )
    if name in tables:
        raise ValueError(f"'{name}' is what the values of '{key}' are stored as; rename it")


def _entries(matrix: Tensor) -> list[Tensor]:
    if matrix.layout is torch.sparse_coo:
        indices, values = component_tensors(matrix)
        return [*indices, values]
    return component_tensors(matrix)


def _edge_source(
    first: Tensor, second: Tensor, compressed: bool, by_destination: bool
) -> EdgeSource:
    """Returns the edges of entries, given by two index vectors of which the first may be
    compressed.
    """
    if not compressed:
        return EdgeSource(coo=torch.stack([second, first] if by_destination else [first, second]))
    if by_destination:
        return EdgeSource(csc=(first.long(), second))
    sources = ptr2index(first).to(second.dtype)
    return EdgeSource(coo=torch.stack([sources, second]))


def _all_ones(values: Tensor) -> bool:
    return values.dim() == 1 and bool((values == 1).all())
