"""What is in a store: its types and sizes, tables and structures by name and type."""

from __future__ import annotations

from torch import Tensor

from peergraph.memory import Table
from peergraph.store.csc.neighbor_lists import read_degrees, read_edge_index
from peergraph.store.csc.tiered_csc import TieredCsc
from peergraph.store.hotness.id_map import IdMap
from peergraph.store.input.schema import Schema
from peergraph.store.input.source import EDGE, NODE, EdgeType, NodeType


class Contents:
    """The part of a store that answers what is in it. Nothing here is collective."""

    def __init__(
        self,
        schema: Schema,
        ids: dict[NodeType, IdMap],
        structures: dict[EdgeType, TieredCsc],
        node_tables: dict[NodeType, dict[str, Table]],
        edge_tables: dict[EdgeType, dict[str, Table]],
    ) -> None:
        self._schema = schema
        self._ids = ids
        self._structures = structures
        self._node_tables = node_tables
        self._edge_tables = edge_tables

    @property
    def node_types(self) -> list[NodeType]:
        """All node types."""
        return list(self._schema.num_nodes)

    @property
    def edge_types(self) -> list[EdgeType]:
        """All edge types, in the order in which a hop samples them."""
        return list(self._schema.num_edges)

    @property
    def is_homogeneous(self) -> bool:
        """Whether the graph was given without types."""
        return self.node_types == [NODE] and self.edge_types in ([EDGE], [])

    def num_nodes(self, node_type: NodeType = NODE) -> int:
        """Nodes of a type; ``KeyError`` for an unknown one."""
        return self._schema.num_nodes[node_type]

    def num_edges(self, edge_type: EdgeType = EDGE) -> int:
        """Edges of a type; ``KeyError`` for an unknown one."""
        return self._schema.num_edges[edge_type]

    def node_table_names(self, node_type: NodeType = NODE) -> list[str]:
        """Names of the tables of a node type."""
        return list(self._node_tables.get(node_type, {}))

    def edge_table_names(self, edge_type: EdgeType = EDGE) -> list[str]:
        """Names of the tables of an edge type."""
        return list(self._edge_tables.get(edge_type, {}))

    def node_table(self, name: str, node_type: NodeType = NODE) -> Table:
        """A node table, read by users' node ids; ``KeyError`` for an unknown one."""
        return self._node_tables[node_type][name]

    def edge_table(self, name: str, edge_type: EdgeType = EDGE) -> Table:
        """An edge table, read by users' edge ids; ``KeyError`` for an unknown one."""
        return self._edge_tables[edge_type][name]

    def csc(self, edge_type: EdgeType = EDGE) -> TieredCsc:
        """The structure of one relation; ``KeyError`` for an unknown one."""
        return self._structures[edge_type]

    def id_map(self, node_type: NodeType = NODE) -> IdMap:
        """The renumbering of a node type; ``KeyError`` for an unknown one."""
        return self._ids[node_type]

    def edge_index(self, edge_type: EdgeType = EDGE) -> Tensor:
        """``[2, E]`` int64 on the CPU (sources, destinations), in the order of the edge ids.
        One-sided; synchronises.
        """
        maps = (self._ids[edge_type[2]], self._ids[edge_type[0]])
        return read_edge_index(self._structures[edge_type], *maps)

    def in_degree(self, edge_type: EdgeType = EDGE) -> Tensor:
        """``[num destinations]`` int64 on the CPU. One-sided; synchronises."""
        return read_degrees(self._structures[edge_type], self._ids[edge_type[2]])
