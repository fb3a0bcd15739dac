"""A store whose edges are those of another one, reversed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from peergraph.memory import Group, Table
from peergraph.store.build.build_reversed import build_reversed
from peergraph.store.input.source import EDGE, NODE, EdgeType, NodeType, reverse_type
from peergraph.store.store import Store


class ReversedStore(Store):
    """The structure of another store with sources and destinations exchanged; see
    :meth:`Store.reversed`. Its node and edge tables are those of the other store.
    """

    original: Store

    @classmethod
    def of(cls, store: Store, group: Group) -> ReversedStore:
        """Builds the reverse of a store. Collective."""
        coo = {t: store.edge_index(t) for t in store.edge_types} if group.rank == 0 else None
        contents = build_reversed(store.contents, coo, store.memory().allocations, group)
        reverse = cls(group, contents, store.exchange)
        reverse.original = store
        return reverse

    def node_table_names(self, node_type: NodeType = NODE) -> list[str]:
        """Returns the names of the tables of a node type."""
        return self.original.node_table_names(node_type)

    def edge_table_names(self, edge_type: EdgeType = EDGE) -> list[str]:
        """Returns the names of the tables of an edge type."""
        return self.original.edge_table_names(reverse_type(edge_type))

    def node_table(self, name: str, node_type: NodeType = NODE) -> Table:
        """Returns a table, read by users' node ids. Raises ``KeyError`` if it is unknown."""
        return self.original.node_table(name, node_type)

    def edge_table(self, name: str, edge_type: EdgeType = EDGE) -> Table:
        """Returns a table, read by users' edge ids. Raises ``KeyError`` if it is unknown."""
        return self.original.edge_table(name, reverse_type(edge_type))

    def add_node_table(self, *args: Any, **options: Any) -> Table:
        """Adds a table to the other store; see there. Collective."""
        return self.original.add_node_table(*args, **options)

    def add_edge_table(
        self, name: str, values: Tensor | None, edge_type: EdgeType = EDGE, **options: Any
    ) -> Table:
        """Adds a table to the other store; see there. Collective."""
        return self.original.add_edge_table(name, values, reverse_type(edge_type), **options)

    def reversed(self) -> Store:
        """Returns the store that this one was made of."""
        return self.original
