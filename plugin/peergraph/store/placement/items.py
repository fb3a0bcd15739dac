"""Lists the items of a graph that are placed: id maps, structure and tables, with their bytes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from peergraph.memory import Tiers
from peergraph.memory.table.rows_with_scales import encoded_bytes
from peergraph.memory.table.tier_sizes import tier_bytes
from peergraph.store.csc.layout import part_bytes, structure_bytes
from peergraph.store.hotness.id_map import id_dtype
from peergraph.store.input.schema import Schema, TableSpec
from peergraph.store.input.source import EdgeType, NodeType
from peergraph.store.placement.plan import Item


def graph_items(
    schema: Schema, degrees: Mapping[EdgeType, Tensor], permuted: Mapping[EdgeType, bool]
) -> list[Item]:
    """Returns structure and tables in the order of their priority: structure first (XGNN 4.3).

    Args:
        degrees: by relation, the in-degree of each row.
        permuted: by relation, whether edge ids differ from CSC positions.
    """
    items = []
    for edge_type, num_edges in schema.num_edges.items():
        name = type_name(edge_type)
        sources = id_dtype(schema.num_nodes[edge_type[0]])
        items.append(_structure_item(edge_type, name, degrees[edge_type], sources))
        if permuted[edge_type]:
            spec = TableSpec((num_edges,), id_dtype(num_edges))
            items.append(row_item("edge ids", name, spec, edge_type))
    items += _table_items("node table", schema.node_tables)
    items += _table_items("edge table", schema.edge_tables)
    return items


def _structure_item(
    edge_type: EdgeType, name: str, degrees: Tensor, index_dtype: torch.dtype
) -> Item:
    cumulative = structure_bytes(degrees, index_dtype)
    return Item(
        "structure",
        name,
        degrees.numel(),
        lambda k: int(cumulative[k]),
        edge_type,
        lambda tiers, world_size: part_bytes(degrees, index_dtype, tiers, world_size),
    )


def _table_items(
    kind: str,
    tables: Mapping[NodeType, Mapping[str, TableSpec]] | Mapping[EdgeType, Mapping[str, TableSpec]],
) -> list[Item]:
    specs = [(t, n, spec) for t, named in tables.items() for n, spec in named.items()]
    # Narrow tables come first: labels and masks cost little, and every batch reads them.
    specs.sort(key=lambda s: s[2].row_bytes)
    return [row_item(kind, table_name(t, n), spec, t) for t, n, spec in specs]


def row_item(kind: str, name: str, spec: TableSpec, of: NodeType | EdgeType) -> Item:
    """Returns an item whose rows have the same size."""
    codec = spec.codec

    def parts(tiers: Tiers, world_size: int) -> dict[str, list[int]]:
        if codec is not None:
            return encoded_bytes(codec, tiers, world_size)
        return tier_bytes(tiers, spec.row_bytes, world_size)

    return Item(
        kind,
        name,
        spec.shape[0],
        lambda k: k * spec.row_bytes,
        of,
        parts,
    )


def id_items(schema: Schema) -> list[Item]:
    """Returns the id maps. Both directions of a map are one item."""
    return [
        row_item("ids", type_name(t), TableSpec((n, 2), id_dtype(n)), t)
        for t, n in schema.num_nodes.items()
    ]


def list_order_items(schema: Schema) -> list[Item]:
    """Returns the maps from destinations to rows of structures with a separate row order."""
    rows = {t: schema.num_nodes[t[2]] for t in schema.num_edges}
    return [
        row_item("list order", type_name(t), TableSpec((n,), id_dtype(n)), t)
        for t, n in rows.items()
    ]


def type_name(kind: NodeType | EdgeType) -> str:
    """Formats a node or edge type, as in ``user`` or ``user-rates-item``."""
    return kind if isinstance(kind, str) else "-".join(kind)


def table_name(kind: NodeType | EdgeType, name: str) -> str:
    """Formats the type and the name of a table."""
    return f"{type_name(kind)}.{name}"
