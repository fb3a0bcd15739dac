"""The contents of a store: structures, tables and id maps, and the memory that they take."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from peergraph.memory import DistributedTable, Group, NarrowTable, StorageReport, Table
from peergraph.memory.table.partitions import Partitions
from peergraph.memory.table.storage_report import merged_report
from peergraph.store.csc.tiered_csc import TieredCsc
from peergraph.store.hotness.id_map import IdMap
from peergraph.store.input.schema import Schema
from peergraph.store.input.source import EdgeType, NodeType
from peergraph.store.placement.added_tables import BuildRecord
from peergraph.store.placement.allocation import Allocation
from peergraph.store.placement.items import table_name, type_name
from peergraph.store.placement.plan import Plan

_logger = logging.getLogger(__name__)


@dataclass
class StoreContents:
    """The result of :func:`build_store`. Tables that are added later are inserted.

    Args:
        schema: sizes by node type and edge type.
        plan: the tier of each row.
        id_maps: the renumbering of each node type.
        structures: the CSC of each edge type.
        node_tables, edge_tables: the tables, by type and name.
        build_record: the inputs of the plan, for placing tables that are added.
        storage_reports: the report of each table that was encoded, by the table's name.
    """

    schema: Schema
    plan: Plan
    id_maps: dict[NodeType, IdMap]
    structures: dict[EdgeType, TieredCsc]
    node_tables: dict[NodeType, dict[str, Table]]
    edge_tables: dict[EdgeType, dict[str, Table]]
    build_record: BuildRecord
    storage_reports: dict[str, StorageReport] = field(default_factory=dict)

    def all_tables(self) -> Iterator[tuple[str, str, Table]]:
        """Yields kind, name and table of everything but the structures, in the plan's words."""
        for node_type, ids in self.id_maps.items():
            for id_map in (ids.to_internal, ids.to_user):
                if id_map is not None:
                    yield "ids", type_name(node_type), id_map
        for edge_type, structure in self.structures.items():
            if structure.edge_ids is not None:
                yield "edge ids", type_name(edge_type), structure.edge_ids
            if structure.order is not None:
                yield "list order", type_name(edge_type), structure.order
        for node_type, node_tables in self.node_tables.items():
            for name, table in node_tables.items():
                yield "node table", table_name(node_type, name), table
        for edge_type, edge_tables in self.edge_tables.items():
            for name, table in edge_tables.items():
                yield "edge table", table_name(edge_type, name), table

    def report_storage(self, group: Group) -> None:
        """Makes the reports of tables whose rows were encoded, and logs them. Collective."""
        narrow = {}
        for _, name, table in self.all_tables():
            table = table.local if isinstance(table, DistributedTable) else table
            if isinstance(table, NarrowTable) and name not in self.storage_reports:
                narrow[name] = table
        if not narrow:
            return
        errors_by_rank = group.all_gather([table.errors for table in narrow.values()])
        for (name, table), errors in zip(
            narrow.items(), zip(*errors_by_rank, strict=True), strict=True
        ):
            if not any(part.rows for part in errors):
                continue
            report = merged_report(name, table.codec, errors)
            self.storage_reports[name] = report
            if group.rank == 0:
                _logger.info("%s", report)

    def allocations(self) -> Iterator[Allocation]:
        """Yields the memory of each structure and table."""
        partitions = self.plan.partitions_in_use
        for edge_type, structure in self.structures.items():
            sizes = {tier: region.sizes for tier, region in structure.regions.items()}
            yield _allocation("structure", type_name(edge_type), sizes, partitions)
        for kind, name, table in self.all_tables():
            yield table_allocation(kind, name, table, partitions)


def table_allocation(kind: str, name: str, table: Table, partitions: Partitions) -> Allocation:
    """Returns the memory of one table."""
    return _allocation(kind, name, table.allocated, partitions)


def _allocation(
    kind: str, name: str, sizes: Mapping[str, Sequence[int]], partitions: Partitions
) -> Allocation:
    nothing = (0,) * partitions.num_gpus
    replicated, sharded = (tuple(sizes.get(tier, nothing)) for tier in ("replicated", "sharded"))
    host, disk = (sum(sizes.get(tier, ())) for tier in ("host", "disk"))
    return Allocation(kind, name, replicated, sharded, host, disk=disk)
