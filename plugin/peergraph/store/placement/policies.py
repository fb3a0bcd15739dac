"""Makes plans from the links of a machine, which may be another machine (XGNN 6.6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peergraph.memory.table.partitions import Partitions
from peergraph.memory.topology.topology import Topology
from peergraph.store.placement.partition_solver import solve
from peergraph.store.placement.plan import Item, Placement, Plan
from peergraph.store.placement.ratios import ShardRatios, choose_by_cost, place_items, predict_items
from peergraph.store.placement.reads import BatchReads


@dataclass(frozen=True)
class Policy:
    """A way to make plans from links.

    Args:
        partition: assigns the partitions of the sharded rows to GPUs.
        replicate: whether hot rows may be replicated on every GPU.
    """

    partition: Callable[[Topology], Partitions]
    replicate: bool


POLICIES: dict[str, Policy] = {"auto": Policy(solve, True), "solver": Policy(solve, False)}
"""Policies by the name of the plan: XGNN's solver with and without replication. Benchmarks add
others."""


def plan_on(
    topology: Topology,
    items: Sequence[Item],
    reads: BatchReads,
    budget: int,
    policy: str = "auto",
    ratios: ShardRatios | None = None,
) -> Plan:
    """Makes the plan of a policy, with the partitions of the sharded rows and the expected reads.

    Args:
        items: the items to place, as :func:`peergraph.store.placement.items.graph_items` lists
            them.
        budget: the bytes that items may take on each GPU.

    Raises:
        ValueError: the policy is unknown, the budget is negative, or the ratios need more memory
            than the budget.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    if budget < 0:
        raise ValueError(f"budget must not be negative, got {budget}")
    chosen = POLICIES[policy]
    partitions = chosen.partition(topology)
    rest = choose_by_cost(reads, topology, partitions, replicate=chosen.replicate)
    tiers = place_items(items, budget, ratios or ShardRatios(), partitions, rest)
    return Plan(
        policy,
        topology.num_gpus,
        budget,
        tuple(map(Placement.of, items, tiers)),
        partitions,
        predict_items(items, tiers, reads, partitions),
    )
