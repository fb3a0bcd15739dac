"""A store's edges the other way round: lists of out-neighbours, beside those of in-neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from peergraph.memory import Group, Table
from peergraph.store.input.source import EDGE, NODE, EdgeSource, EdgeType, GraphSource, NodeType
from peergraph.store.placement.added_tables import left_of_host
from peergraph.store.placement.allocation import Allocation, fullest_rank
from peergraph.store.placement.plan import Plan
from peergraph.store.placement.planner import budget_granule
from peergraph.store.store import Store


class ReversedStore(Store):
    """The structure of another store with sources and destinations exchanged; see
    :meth:`Store.reversed`. Its node and edge tables are those of the other store.
    """

    original: Store

    def node_table_names(self, node_type: NodeType = NODE) -> list[str]:
        """Names of the tables of a node type."""
        return self.original.node_table_names(node_type)

    def edge_table_names(self, edge_type: EdgeType = EDGE) -> list[str]:
        """Names of the tables of an edge type."""
        return self.original.edge_table_names(reverse_type(edge_type))

    def node_table(self, name: str, node_type: NodeType = NODE) -> Table:
        """A node table, read by users' node ids; ``KeyError`` for an unknown one."""
        return self.original.node_table(name, node_type)

    def edge_table(self, name: str, edge_type: EdgeType = EDGE) -> Table:
        """An edge table, read by users' edge ids; ``KeyError`` for an unknown one."""
        return self.original.edge_table(name, reverse_type(edge_type))

    def add_node_table(
        self, name: str, values: Tensor | None, node_type: NodeType = NODE, *, plan: str = "auto"
    ) -> Table:
        """Adds a table to the other store; see there. Collective."""
        return self.original.add_node_table(name, values, node_type, plan=plan)

    def add_edge_table(
        self, name: str, values: Tensor | None, edge_type: EdgeType = EDGE, *, plan: str = "auto"
    ) -> Table:
        """Adds a table to the other store; see there. Collective."""
        return self.original.add_edge_table(name, values, reverse_type(edge_type), plan=plan)

    def reversed(self) -> Store:
        """The store that this one was made of."""
        return self.original


def reverse_type(edge_type: EdgeType) -> EdgeType:
    """The edge type with source and destination type exchanged."""
    return edge_type[2], edge_type[1], edge_type[0]


def make_reversed(store: Store) -> ReversedStore:
    """See :meth:`Store.reversed`. Collective."""
    group = store.group
    if group is None:
        raise RuntimeError("only the ranks that built a store can turn it")
    source = None
    if group.rank == 0:
        source = GraphSource(
            {t: store.num_nodes(t) for t in store.node_types},
            {
                reverse_type(t): EdgeSource(coo=store.edge_index(t).flip(0))
                for t in store.edge_types
            },
        )
    taken = store.memory().allocations
    spill = left_of_host(store.build_record.spill, taken, group)
    made = ReversedStore.build(
        source,
        memory_budget=_left(store.plan, taken, group),
        topology=store.build_record.topology,
        spill=spill.folder,
        host_budget=spill.host_budget,
        group=group,
        progress=False,
    )
    assert isinstance(made, ReversedStore)
    made.original = store
    return made


def _left(plan: Plan, taken: Sequence[Allocation], group: Group) -> int | None:
    """What a store's budget has left."""
    if plan.memory_budget is None:
        return None
    granule = budget_granule(plan.memory_budget, plan, group)
    return max(0, plan.memory_budget - fullest_rank(taken, granule)[1])
