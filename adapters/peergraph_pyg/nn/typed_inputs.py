"""Features and edges by type, as layers take them that run all relations as one operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate import FEATURE_DTYPES, Relation, layers, supports
from peergraph.integration import Unsupported, require
from peergraph.memory import EncodedRows, TableRows

from ..data.lazy_features import LazyRows, gathered, is_plain
from ..data.tailed_rows import whole_rows
from .features import kind_of
from .joined_layers import EdgeType
from .linear_maps import is_plain_map, weight_and_bias


def is_edge_index(edges: Any) -> bool:
    """Returns whether `edges` is a plain edge index, [2, edges] int32 or int64."""
    if not is_plain(edges) or edges.dtype not in (torch.int32, torch.int64):
        return False
    shape = edges.shape
    return len(shape) == 2 and shape[0] == 2


def is_matrix(x: Any) -> bool:
    """Returns whether `x` is a matrix of features, plain or not gathered yet."""
    return (is_plain(x) or type(x) is LazyRows) and x.dtype in FEATURE_DTYPES and x.dim() == 2


def rows_to_read(x: Tensor) -> Tensor | EncodedRows:
    """Returns features as they are read: rows of narrow storage are not decoded."""
    if type(x) is LazyRows and not (x.requires_grad and torch.is_grad_enabled()):
        encoded = x.encoded()
        return x.materialize() if encoded is None else encoded
    return gathered(x)


def rows_in_place(x: Tensor, reads: int, dtype: torch.dtype) -> Tensor | EncodedRows | TableRows:
    """Returns features of which a kernel is to read `reads` rows: where they lie, if that pays.

    Args:
        dtype: of the kernel's result: rows are of this dtype, or of float32.
    """
    is_lazy = type(x) is LazyRows and not (x.requires_grad and torch.is_grad_enabled())
    if isinstance(x, LazyRows) and is_lazy and x.dtype in (dtype, torch.float32):
        rows = x.table_rows
        if not x.is_in_memory and rows.can_be_read and rows.pays_to_read(reads):
            return rows
        encoded = x.encoded()
        if encoded is not None:
            return encoded
    in_memory = gathered(x)
    return in_memory if in_memory.dtype in (dtype, torch.float32) else in_memory.float()


def all_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns features as a plain tensor; rows of narrow storage are decoded to `dtype`."""
    return rows_between(x, 0, x.shape[0], dtype)


def rows_between(x: Tensor, begin: int, end: int, dtype: torch.dtype) -> Tensor:
    """Returns a range of features as a plain tensor, of `dtype` if they are not in memory."""
    if type(x) is LazyRows and not (x.requires_grad and torch.is_grad_enabled()):
        return x.rows_in(begin, end, dtype)
    in_memory = gathered(x)
    return in_memory if end - begin == x.shape[0] else in_memory[begin:end]


def groups_of(features: Sequence[Tensor | EncodedRows | TableRows]) -> list[int]:
    """Returns a number for each of the features, the same for those that one kernel can read."""
    kinds = [layers.kind_of_rows(rows) for rows in features]
    return [kinds.index(kind) for kind in kinds]


def need_gradients(features: Sequence[Any]) -> bool:
    """Returns whether any of the features needs a gradient."""
    return any(isinstance(x, Tensor) and x.requires_grad for x in features)


def features_of(x_dict: Any, maps: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the features of each type in the order of the maps; raises Unsupported unless each
    map is PyG's, has a bias and multiplies the features of its type.

    Args:
        x_dict: features by type.
        maps: linear maps by type, of types without features too.
    """
    require(isinstance(x_dict, Mapping), f"features are a {kind_of(x_dict)}")
    require(bool(x_dict) and set(x_dict) <= set(maps), "there are types that the layer lacks")
    features = {key: whole_rows(x_dict[key]) for key in maps if key in x_dict}
    for key, x in features.items():
        require(is_matrix(x), f"x is a {kind_of(x)}")
        linear = maps[key]
        require(is_plain_map(linear), "a map is the user's, or there are hooks of a map")
        weight, bias = weight_and_bias(linear)
        require(is_plain(weight) and is_plain(bias), "a map has no bias")
        fits = weight.shape[1] == x.shape[1] and weight.device == x.device == bias.device
        require(fits and weight.dtype == bias.dtype, "weights do not fit")
    return features


def relations_of(
    edge_index_dict: Any, features: Mapping[str, Tensor], edge_types: Iterable[EdgeType]
) -> list[Relation]:
    """Returns the edges of each relation; raises Unsupported for edges of another kind.

    Args:
        edge_index_dict: edges by type.
        features: by node type.
        edge_types: those that the layer has parameters for.
    """
    require(isinstance(edge_index_dict, Mapping), f"edges are a {kind_of(edge_index_dict)}")
    require(bool(edge_index_dict), "there are no relations")
    require(set(edge_index_dict) <= set(edge_types), "there are types that the layer lacks")
    numbers = {node_type: i for i, node_type in enumerate(features)}
    device = next(iter(features.values())).device
    relations = []
    for (source, _, target), edges in edge_index_dict.items():
        if not is_edge_index(edges):
            raise Unsupported(f"edge_index is a {kind_of(edges)}")
        require(edges.device == device and supports(device), "edges are on another device")
        require(source in numbers and target in numbers, "a type has no features")
        relations.append(
            Relation(edges, features[source].shape[0], numbers[target], sources=numbers[source])
        )
    return relations
