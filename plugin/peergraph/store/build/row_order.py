"""Orders of rows by hotness: for nodes, and for neighbour lists with a separate order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from peergraph.memory import Group, Table, Tiers
from peergraph.store.csc.layout import list_bytes
from peergraph.store.hotness.id_map import IdMap, hottest_first, id_dtype, replicated_ids
from peergraph.store.input.schema import Schema
from peergraph.store.input.source import EdgeType, NodeType
from peergraph.store.placement.items import table_name, type_name
from peergraph.store.placement.plan import Plan
from peergraph.store.placement.planner import splits


@dataclass(frozen=True)
class RowOrder:
    """The user id of each row, in descending order of hotness. Types without an entry keep the
    users' order.

    Args:
        nodes: by node type, the order for node tables, and for structures that are not in `lists`.
        lists: by edge type, the order for structures.
    """

    nodes: Mapping[NodeType, Tensor]
    lists: Mapping[EdgeType, Tensor]

    @classmethod
    def by_hotness(
        cls,
        nodes: Mapping[NodeType, Tensor],
        lists: Mapping[EdgeType, Tensor],
        degrees: Mapping[EdgeType, Tensor],
        schema: Schema,
        device: torch.device,
    ) -> RowOrder:
        """Sorts nodes by hotness, and lists by reads per byte, in descending order.

        Args:
            nodes: by node type, the hotness of each node.
            lists: by edge type, the number of reads of each list.
            degrees: by edge type, the in-degree of each destination.
            schema: the sizes of the graph.
            device: the device that sorts.
        """

        def density(edge_type: EdgeType, reads: Tensor) -> Tensor:
            index_dtype = id_dtype(schema.num_nodes[edge_type[0]])
            return reads.double() / list_bytes(degrees[edge_type], index_dtype)

        return cls(
            {t: hottest_first(reads, device) for t, reads in nodes.items()},
            {t: hottest_first(density(t, reads), device) for t, reads in lists.items()},
        )

    def list_order(self, edge_type: EdgeType) -> Tensor | None:
        """Returns the user id of each row of a structure; None: rows are in the users' order."""
        return self.lists.get(edge_type, self.nodes.get(edge_type[2]))

    def degrees(self, by_user: Mapping[EdgeType, Tensor]) -> dict[EdgeType, Tensor]:
        """Returns the degrees in the order of the rows."""
        orders = {t: self.list_order(t) for t in by_user}
        return {t: d if (o := orders[t]) is None else d[o] for t, d in by_user.items()}

    def used_by(self, plan: Plan, *, keep_nodes: bool = False) -> tuple[RowOrder, Plan]:
        """Returns the orders that a plan needs, and the plan without id maps of the other orders.
        Rows that are all on one tier keep the users' order.

        Args:
            keep_nodes: whether to keep the orders of nodes in any case.
        """
        lists = {
            t: order
            for t, order in self.lists.items()
            if splits(plan.tiers("structure", type_name(t)))
        }
        by_nodes = {"node table"} if self.lists else {"node table", "structure"}
        nodes = self.nodes
        tiered = any(p.kind in by_nodes and splits(p.tiers) for p in plan.placements)
        if not tiered and not keep_nodes:
            nodes = {}
        names = {"ids": {type_name(t) for t in nodes}, "list order": {type_name(t) for t in lists}}
        placements = tuple(p for p in plan.placements if p.name in names.get(p.kind, {p.name}))
        return RowOrder(nodes, lists), replace(plan, placements=placements)

    def with_user_order_on_disk(self, plan: Plan, schema: Schema) -> RowOrder:
        """Returns the orders with the rows on disk sorted by user id, so that loading writes files
        sequentially. In other orders, loading would read and write each page once for each of its
        rows. The tiers of rows do not change.
        """
        lists = {t: plan.tiers("structure", type_name(t)) for t in schema.num_edges}
        nodes = {}
        for node_type, order in self.nodes.items():
            names = schema.node_tables.get(node_type, {})
            tiers = [plan.tiers("node table", table_name(node_type, name)) for name in names]
            tiers += [lists[t] for t in lists if t[2] == node_type and t not in self.lists]
            nodes[node_type] = _with_user_order_behind(order, tiers)
        of_lists = {
            t: _with_user_order_behind(order, [lists[t]]) for t, order in self.lists.items()
        }
        return RowOrder(nodes, of_lists)

    def id_maps(self, schema: Schema, group: Group) -> dict[NodeType, IdMap]:
        """Makes the id maps of each node type. Collective."""
        return {
            t: IdMap.from_order(self.nodes[t], group) if t in self.nodes else IdMap()
            for t in schema.num_nodes
        }

    def row_map(self, edge_type: EdgeType, group: Group) -> Table | None:
        """Makes the map from internal ids to rows of a structure; None if it is not in `lists`.
        Collective.
        """
        if edge_type not in self.lists:
            return None
        order = self.lists[edge_type]
        rows = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device="cpu"))
        users = self.nodes.get(edge_type[2])
        return replicated_ids(rows if users is None else rows[users], group)


def _with_user_order_behind(order: Tensor, tiers: Sequence[Tiers]) -> Tensor:
    """Returns the order in which the rows from the first one on disk are sorted by user id within
    each tier.
    """
    rows = order.numel()
    first = rows - max((t.disk for t in tiers), default=0)
    cuts = {cut for t in tiers for cut in accumulate((t.replicated, t.sharded, t.host))}
    ends = sorted({first, rows, *(cut for cut in cuts if cut > first)})
    behind = [order[begin:end].sort().values for begin, end in pairwise(ends)]
    return torch.cat([order[:first], *behind])
