"""Chooses the tables that are split over machines, and the rows that each machine has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from peergraph.memory import DistributedTable, Group, Machines, RowExchange
from peergraph.memory.distributed.machine_split import MachineSplit
from peergraph.memory.distributed.row_set import RowSet
from peergraph.memory.group.content import describe_content
from peergraph.store.contents import StoreContents
from peergraph.store.hotness.id_map import IdMap
from peergraph.store.input.schema import Schema, TableSpec
from peergraph.store.input.source import EdgeType, NodeType
from peergraph.store.placement.items import type_name
from peergraph.store.placement.options import PlacementOptions, batches_per_exchange, hot_ratio

# Tables with rows of at most this many bytes are stored whole on each machine. These are labels,
# masks, weights and times: they take less memory than the structure, and samplers and users read
# them outside of batches.
NARROW_ROW_BYTES = 16

Splits = Mapping[NodeType | EdgeType, MachineSplit]


def machine_splits(schema: Schema, options: PlacementOptions, machines: Machines) -> Splits:
    """Returns the split of the rows of each node and edge type that has a split table.

    Args:
        options: the options, complete.
    """
    if options["machines"] != "shard" or machines.count == 1:
        return {}
    if schema.frames:
        raise NotImplementedError(
            "frames with rows split over machines, because lists are read in two steps: use "
            'machines="replicate"'
        )
    splits: dict[NodeType | EdgeType, MachineSplit] = {}
    ratio, count, index = hot_ratio(options), machines.count, machines.index
    for node_type, node_tables in schema.node_tables.items():
        if any(map(is_split, node_tables.values())):
            rows = schema.num_nodes[node_type]
            splits[node_type] = MachineSplit(rows, round(ratio * rows), count, index)
    for edge_type, edge_tables in schema.edge_tables.items():
        if any(map(is_split, edge_tables.values())):
            splits[edge_type] = MachineSplit(schema.num_edges[edge_type], 0, count, index)
    return splits


def is_split(spec: TableSpec) -> bool:
    """Returns whether the rows of a table are split over machines."""
    return spec.row_bytes > NARROW_ROW_BYTES


def schema_of_machine(schema: Schema, splits: Splits) -> Schema:
    """Returns the schema of the tables of this machine, which have fewer rows if they are split."""

    def shrunk(kind: NodeType | EdgeType, tables: Mapping[str, TableSpec]) -> dict[str, TableSpec]:
        if kind not in splits:
            return dict(tables)
        rows = splits[kind].local_rows
        return {
            name: replace(spec, shape=(rows, *spec.shape[1:])) if is_split(spec) else spec
            for name, spec in tables.items()
        }

    return replace(
        schema,
        node_tables={t: shrunk(t, tables) for t, tables in schema.node_tables.items()},
        edge_tables={t: shrunk(t, tables) for t, tables in schema.edge_tables.items()},
    )


def row_sets(
    splits: Splits, id_maps: Mapping[NodeType, IdMap]
) -> dict[NodeType | EdgeType, RowSet]:
    """Returns the row set of each type with split tables."""
    return {
        kind: RowSet(
            type_name(kind), split, id_maps[kind].to_internal if isinstance(kind, str) else None
        )
        for kind, split in splits.items()
    }


def check_same_splits(
    schema: Schema,
    splits: Splits,
    orders: Mapping[NodeType, Tensor],
    options: PlacementOptions,
    group: Group,
) -> None:
    """Raises ValueError if machines split, store or exchange rows differently. Collective over all
    machines.

    Args:
        orders: by node type, the user id of each row.
        options: the options, complete.
    """
    mine: dict[str, Any] = {}
    if group.rank == 0:
        digests = {
            t: describe_content(orders[t]) for t in splits if isinstance(t, str) and t in orders
        }
        mine = {
            "machines and hot_ratio": {str(t): [s.rows, s.hot] for t, s in splits.items()},
            "batches_per_exchange": batches_per_exchange(options),
            "hotness": {str(t): digest for t, digest in digests.items()},
            "storage": {
                f"{name!r} of {t!r}": spec.storage
                for tables in (schema.node_tables, schema.edge_tables)
                for t, named in tables.items()
                for name, spec in named.items()
            },
        }
    by_machine = group.all_gather_machines(mine)
    for machine, other in enumerate(by_machine):
        for name, value in by_machine[0].items():
            if other[name] != value:
                first, second = (group.machines.name(m) for m in (0, machine))
                raise ValueError(
                    f'{name}: with machines="shard" all machines must have the same, and {first} '
                    f"and {second} differ: {value} and {other[name]}"
                )


def connect_exchange(
    contents: StoreContents, options: PlacementOptions, group: Group
) -> RowExchange | None:
    """Makes the exchange of rows of a new store; None if no table is split over machines.
    Collective over all machines.

    Args:
        options: the options, complete.
    """
    by_name = (*contents.node_tables.values(), *contents.edge_tables.values())
    split = [t for named in by_name for t in named.values() if isinstance(t, DistributedTable)]
    if not split:
        return None
    name, batches = group.machines.next_name(), batches_per_exchange(options)
    return RowExchange(group, split, name, batches_per_round=batches)
