"""Small graphs for the store's tests, and plans that use every tier."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.memory import Tiers
from peergraph.store import EdgeSource, GraphSource, Plan, Store

PLANS = ["replicated", "sharded", "host", "auto", "mixed"]


def random_coo(num_sources: int, num_destinations: int, num_edges: int, seed: int = 0) -> Tensor:
    """[2, E] with self loops, repeated edges, isolated nodes and one hub."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(max(1, num_sources - 2), (num_edges,), generator=generator)
    destination = torch.randint(max(1, num_destinations - 2), (num_edges,), generator=generator)
    destination[: num_edges // 4] = num_destinations // 2
    return torch.stack([source, destination])


def homogeneous_source(num_nodes: int = 60, num_edges: int = 400, seed: int = 0) -> GraphSource:
    """A multigraph with tables of several dtypes and shapes."""
    generator = torch.Generator().manual_seed(seed)
    return GraphSource.homogeneous(
        num_nodes,
        EdgeSource(coo=random_coo(num_nodes, num_nodes, num_edges, seed)),
        node_tables={
            "x": torch.randn(num_nodes, 7, generator=generator),
            "half": torch.randn(num_nodes, 3, generator=generator).bfloat16(),
            "y": torch.arange(num_nodes),
            "mask": torch.rand(num_nodes, generator=generator) < 0.5,
        },
        edge_tables={"w": torch.randn(num_edges, generator=generator)},
    )


def heterogeneous_source(scale: int = 1) -> GraphSource:
    """Two node types, three relations, one of them without edges."""
    users, items, buys, bought = (scale * n for n in (20, 30, 100, 90))
    return GraphSource(
        {"user": users, "item": items},
        {
            ("user", "buys", "item"): EdgeSource(coo=random_coo(users, items, buys, 1)),
            ("item", "bought by", "user"): EdgeSource(coo=random_coo(items, users, bought, 2)),
            ("user", "knows", "user"): EdgeSource(coo=torch.empty((2, 0), dtype=torch.int64)),
        },
        node_tables={"user": {"x": torch.randn(users, 4)}, "item": {"x": torch.randn(items, 5)}},
        edge_tables={("user", "buys", "item"): {"stars": torch.arange(buys).to(torch.int8)}},
    )


def build(source: GraphSource | None, plan: str, **options: object) -> Store:
    """Builds with a named plan, or with `mixed`: all three tiers in every item.

    Of the options, a `memory_budget` is for "auto" only.
    """
    if plan != "auto":
        options.pop("memory_budget", None)
    if plan != "mixed":
        return Store.build(source, plan=plan, **options)  # type: ignore[arg-type]
    with Store.build(source, plan="sharded", **options) as store:  # type: ignore[arg-type]
        sharded = store.plan
    return Store.build(source, plan=mixed(sharded), **options)  # type: ignore[arg-type]


def mixed(plan: Plan) -> Plan:
    """The plan with a third of each item's rows in each tier, ids left where they are."""
    values = plan.to_dict()
    for placement in values["placements"]:
        if placement["kind"] != "ids":
            rows = Tiers(**placement["tiers"]).rows
            third = rows // 3
            placement["tiers"] = {"replicated": third, "sharded": third, "host": rows - 2 * third}
    return Plan.from_dict({**values, "name": "mixed"})
