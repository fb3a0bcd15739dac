"""Structures of edges that are partitioned over ranks, for Peergraph's layers."""

from __future__ import annotations

from collections.abc import Hashable, MutableMapping
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from peergraph.aggregate import FEATURE_DTYPES
from peergraph.fullgraph import (
    PartitionedEdgeIndex,
    PartitionedStructure,
    PartitionedTensor,
    RowLayout,
    select_edges,
)
from peergraph.integration import Unsupported, is_explaining, note, require

from .features import Ends, is_partitioned

# The structures of each relation, by the tensor of relations, as long as that lives.
_by_relation: MutableMapping[Tensor, Any] = WeakIdKeyDictionary()


def split_weights(edge_index: Any, edge_weight: Any = None) -> tuple[Any, Any]:
    """Returns edges and their weights: `edge_weight`, or the values of a partitioned matrix.

    Raises:
        ValueError: there are weights, and the matrix has values too.
    """
    if not is_weighted(edge_index):
        return edge_index, edge_weight
    if edge_weight is not None:
        raise ValueError("edge_weight: the matrix has values; pass one of them")
    return PartitionedEdgeIndex(edge_index.structure), edge_index.edge_weight


def is_weighted(value: Any) -> bool:
    """Returns whether a value is a partitioned matrix with values."""
    return isinstance(value, PartitionedEdgeIndex) and isinstance(
        value.edge_weight, PartitionedTensor
    )


def partitioned_structure(
    edge_index: PartitionedEdgeIndex, size: Any, x: Ends, e: Tensor | None
) -> PartitionedStructure:
    """Returns the structure of a partitioned edge index; raises Unsupported for other operands.

    Args:
        edge_index: the edges.
        size: the argument `size` of the call, or None.
        x: features of nodes.
        e: a value for each edge, or None.
    """
    structure = edge_index.structure
    nodes = (structure.source_layout, structure.destination_layout)
    for end, features in enumerate(x):
        if features is not None:
            _require_rows("x", features, nodes[end])
    sizes = (None, None) if size is None else tuple(size)
    fits = all(
        size_or_none in (None, layout.size)
        for size_or_none, layout in zip(sizes, nodes, strict=True)
    )
    require(fits, f"size is {sizes}")
    if x.x_dst is None:
        require(nodes[0].same_rows(nodes[1]), "there are no features of destinations")
    if e is not None:
        _require_rows("edge weights", e, structure.edge_layout)
    if is_explaining():
        plan = structure.resident.plan
        network = f", {plan.network_rows} of them over the network" if plan.network_rows else ""
        note(
            f"structure: partitioned, rows are exchanged in mode {structure.resident.mode}, "
            f"{plan.num_extended} rows of sources on this rank{network}"
        )
    return structure


def relation_structures(
    edge_index: PartitionedEdgeIndex, edge_type: Tensor, num_relations: int
) -> list[PartitionedStructure]:
    """Returns the structure of each relation, made once for the content of `edge_type`. Collective.

    Args:
        edge_index: all edges.
        edge_type: [edges] partitioned, the relation of each.
        num_relations: the number of relations.
    """
    structure = edge_index.structure
    _require_rows("edge types", edge_type, structure.edge_layout, dtypes=None)
    assert isinstance(edge_type, PartitionedTensor)
    # The ranks must agree: each makes the structures with all others.
    state: Hashable = (*structure.edge_layout.digests(edge_type.to_local()), num_relations)
    entry = _by_relation.get(edge_type)
    if entry is not None and entry[0] == state and entry[1] is structure:
        by_type: list[PartitionedStructure] = entry[2]
        return by_type
    structures = []
    for relation in range(num_relations):
        mask = edge_type == relation
        assert isinstance(mask, PartitionedTensor)
        structures.append(select_edges(structure, mask))
    _by_relation[edge_type] = (state, structure, structures)
    return structures


def _require_rows(name: str, value: Any, layout: RowLayout, dtypes: Any = FEATURE_DTYPES) -> None:
    require(is_partitioned(value), f"{name} are not partitioned")
    require(layout.same_rows(value.row_layout), f"{name} have other rows")
    if dtypes is not None and value.dtype not in dtypes:
        raise Unsupported(f"{name} are {value.dtype}")
