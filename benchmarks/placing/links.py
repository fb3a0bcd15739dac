"""Policies of placement on GPUs with all of their links and with some of them: XGNN's Figure 13."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import combinations

from peergraph.memory.topology.topology import Topology
from peergraph.store import Plan
from peergraph.store.placement.policies import plan_on
from peergraph.store.placement.prediction import total_link_bytes
from placing.cliques import POLICIES
from placing.machines import machine
from placing.stores import (
    PLAIN,
    Case,
    Measured,
    Measurements,
    Watch,
    predicted_fields,
    record_batches,
)

# XGNN 6.6: four linked GPUs, four on a ring, six and eight of the DGX-1.
_MACHINES = {
    "4Gf": "dgx1-clique4",
    "4Gc": "dgx1-ring4",
    "6G": "dgx1-6",
    "8G": "dgx1",
}


def ring(topology: Topology) -> Topology:
    """The GPUs with the links of a ring only, in their order."""
    count = topology.num_gpus
    pairs = combinations(range(count), 2)
    return topology.masked([(a, b) for a, b in pairs if (b - a) % count not in (1, count - 1)])


def apart(topology: Topology) -> Topology:
    """The GPUs without links."""
    return topology.masked(list(combinations(range(topology.num_gpus), 2)))


def topologies(topology: Topology) -> dict[str, Topology]:
    """The machine's links, as they are and masked."""
    by_name = {"full": topology}
    if topology.num_gpus > 3:
        by_name["ring"] = ring(topology)
    return by_name


def measure_policy(
    measurements: Measurements, policy: str, topology: Topology, budget: int
) -> Measured:
    """Mini-batches with a policy's placement. Collective."""
    case = Case(policy, policy, budget, topology)
    return measurements.of(case, policy_key(policy, topology, budget))[PLAIN]


def policy_key(policy: str, topology: Topology, budget: int) -> Hashable:
    """The same for policies that place alike on these links."""
    chosen = POLICIES[policy]
    partitions = chosen.partition(topology)
    return topology, partitions.stored, partitions.source, chosen.replicate, budget


def policy_budget(measurements: Measurements) -> int:
    """Bytes on each GPU."""
    workload = measurements.workload
    return int(workload.session.args.share * workload.need)


def run_links(measurements: Measurements, topology: Topology, watch: Watch) -> None:
    """Each policy on each of the topologies; those that place alike are measured once."""
    session = measurements.workload.session
    if session.world == 1:
        session.recorder.skip("links", "one GPU has no links")
        return
    budget = policy_budget(measurements)
    for setting, links in topologies(topology).items():
        for policy in POLICIES:
            name = f"links: {policy} on {setting}"
            if not watch.allows(name):
                continue
            with session.section(name, part="links", setting=setting, plan=policy):
                measured = measure_policy(measurements, policy, links, budget)
                record_batches(session, measured, part="links", setting=setting, plan=policy)


def run_machines(measurements: Measurements, topology: Topology, watch: Watch) -> None:
    """Times of the counted bytes on the machines of XGNN's Figure 13, whose links are nominal."""
    workload = measurements.workload
    session = workload.session
    budget = policy_budget(measurements)
    for setting, name in _MACHINES.items():
        if not watch.allows(f"machines: {setting}"):
            continue
        with session.section(f"machines: {setting}", part="machines", setting=setting):
            for policy in POLICIES:
                links = machine(name)
                plan: Plan = session.first_does(
                    lambda policy=policy, links=links: plan_on(  # type: ignore[misc]
                        links, workload.items, workload.reads, budget, policy
                    )
                )
                session.recorder.note(
                    system="predicted",
                    part="machines",
                    setting=setting,
                    plan=policy,
                    graph=workload.spec.name,
                    link_ms=1e3 * link_seconds(plan, links),
                    **predicted_fields(plan.predictions),
                )


def link_seconds(plan: Plan, topology: Topology) -> float:
    """The seconds of a mini-batch's bytes on the slowest GPU: on its slowest link, then from the
    host.
    """
    rates, count = topology.bulk, topology.num_gpus
    slowest = 0.0
    for gpu, moved in enumerate(total_link_bytes(plan.predictions)):
        links = [moved[j] / rates.bandwidth[gpu][j] for j in range(count) if moved[j]]
        slowest = max(slowest, max(links, default=0.0) + moved[count] / rates.host[gpu])
    return slowest
