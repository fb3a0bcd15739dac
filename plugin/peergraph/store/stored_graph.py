"""What a store holds, by type and name."""

from __future__ import annotations

from peergraph.memory import StorageReport, Table
from peergraph.store.contents import StoreContents
from peergraph.store.csc.tiered_csc import TieredCsc
from peergraph.store.hotness.id_map import IdMap
from peergraph.store.input.frame_spec import VALUES, FrameSpec, list_type
from peergraph.store.input.source import EDGE, NODE, EdgeType, NodeType
from peergraph.store.placement.plan import Plan


class StoredGraph:
    """The types, structures and tables of a store; none of its methods is collective."""

    contents: StoreContents
    """Structures, tables and id maps."""

    @property
    def plan(self) -> Plan:
        """The tier of each row."""
        return self.contents.plan

    @property
    def storage_reports(self) -> dict[str, StorageReport]:
        """The report of each table that was encoded for narrow storage, by the table's name."""
        return self.contents.storage_reports

    @property
    def node_types(self) -> list[NodeType]:
        """All node types."""
        return self.contents.schema.node_types

    @property
    def edge_types(self) -> list[EdgeType]:
        """All edge types, in the order in which a hop samples them."""
        return list(self.contents.schema.num_edges)

    @property
    def is_homogeneous(self) -> bool:
        """Whether the graph has one node type and at most one edge type, without names."""
        return self.node_types == [NODE] and self.edge_types in ([EDGE], [])

    def num_nodes(self, node_type: NodeType = NODE) -> int:
        """Returns the number of nodes of a type. Raises ``KeyError`` if it is unknown."""
        return self.contents.schema.num_nodes[node_type]

    def num_edges(self, edge_type: EdgeType = EDGE) -> int:
        """Returns the number of edges of a type. Raises ``KeyError`` if it is unknown."""
        return self.contents.schema.num_edges[edge_type]

    def node_table_names(self, node_type: NodeType = NODE) -> list[str]:
        """Returns the names of the tables of a node type."""
        return list(self.contents.node_tables.get(node_type, {}))

    def edge_table_names(self, edge_type: EdgeType = EDGE) -> list[str]:
        """Returns the names of the tables of an edge type."""
        return list(self.contents.edge_tables.get(edge_type, {}))

    def node_table(self, name: str, node_type: NodeType = NODE) -> Table:
        """Returns a table, read by users' node ids. Raises ``KeyError`` if it is unknown."""
        return self.contents.node_tables[node_type][name]

    def edge_table(self, name: str, edge_type: EdgeType = EDGE) -> Table:
        """Returns a table, read by users' edge ids. Raises ``KeyError`` if it is unknown."""
        return self.contents.edge_tables[edge_type][name]

    def frames(self, owner: NodeType | EdgeType = NODE) -> dict[str, FrameSpec]:
        """Returns the frames of a node type or an edge type by name: their columns and statistics.
        Each field's rows are a table of that type.
        """
        return dict(self.contents.schema.frames.get(owner, {}))

    def list_values(self, table: str, owner: NodeType | EdgeType = NODE) -> Table:
        """Returns the elements of lists, ``[elements]``. Raises ``KeyError`` if they are unknown.

        Args:
            table: the name of the table of the owner's rows, which has the bounds of the lists.
        """
        return self.contents.node_tables[list_type(owner, table)][VALUES]

    def csc(self, edge_type: EdgeType = EDGE) -> TieredCsc:
        """Returns the structure of a relation. Raises ``KeyError`` if it is unknown."""
        return self.contents.structures[edge_type]

    def id_map(self, node_type: NodeType = NODE) -> IdMap:
        """Returns the renumbering of a node type. Raises ``KeyError`` if it is unknown."""
        return self.contents.id_maps[node_type]
