"""One mechanism after the other: the factor analysis of XGNN's Figure 10, on mini-batches.

base (BASE): each GPU keeps the same structure and the same features, as far as they fit, structure
first; the rest is on the host, and no GPU reads another one's memory. + structure (+MSG): structure
is sharded over the GPUs, features as before in the memory that this leaves. + features (+MSF): they
are sharded, too, both over fully linked cliques (Quiver's policy). + sampler (+OGA): only drawn
neighbours are read; the rows above draw by equal weights, which like a reservoir goes through every
neighbour. + solver (+PSA): XGNN's solver places the partitions. + replication, not XGNN's: the cost
model replicates the hottest rows.
"""

from __future__ import annotations

from peergraph.memory import Tiers
from peergraph.memory.table.partitions import Partitions
from peergraph.memory.topology.topology import Topology
from peergraph.store import Placement, Plan
from peergraph.store.placement.tier_choice import bytes_on_gpu, tiers_of_ratio
from placing.cliques import place_by_cliques
from placing.links import apart, measure_policy, policy_budget, policy_key, ring
from placing.stores import (
    PLAIN,
    RESERVOIR,
    Case,
    Measured,
    Measurements,
    Watch,
    default_sampler,
    record_batches,
    reservoir_sampler,
)
from placing.workload import Workload

_BEFORE_SAMPLER = ("base", "+ structure", "+ features")
FACTORS = (*_BEFORE_SAMPLER, "+ sampler", "+ solver", "+ replication")


def run_factors(measurements: Measurements, topology: Topology, watch: Watch) -> None:
    """All rows, on a ring where there are so many GPUs that this leaves links out."""
    session = measurements.workload.session
    if session.world == 1:
        session.recorder.skip("factors", "one GPU shares nothing")
        return
    budget = policy_budget(measurements)
    links = ring(topology)
    for factor in FACTORS:
        if not watch.allows(f"factors: {factor}"):
            continue
        with session.section(f"factors: {factor}", part="factors", setting=factor):
            measured = _measure(measurements, factor, links, budget)
            sampler = RESERVOIR if factor in _BEFORE_SAMPLER else PLAIN
            for name in sorted(measured, key=lambda name: name != sampler):
                fields = {"setting": factor, "sampler": name, "plan": "by hand"}
                record_batches(
                    session,
                    measured[name],
                    part="factors",
                    op="batch" if name == sampler else "beside",
                    **fields,
                )


def _measure(
    measurements: Measurements, factor: str, links: Topology, budget: int
) -> dict[str, Measured]:
    """By sampler. Collective."""
    both = {RESERVOIR: reservoir_sampler, PLAIN: default_sampler}
    if factor == "base":
        case = Case(factor, "auto", budget, apart(links), {"first": "structure"})
        return measurements.of(case, factor, both)
    if factor == "+ structure":
        plan = _structure_first(measurements.workload, place_by_cliques(links), budget)
        return measurements.of(Case(factor, plan, budget, links), factor, both)
    # One store for both rows, and for the policy where the others are compared with it.
    if factor in ("+ features", "+ sampler"):
        case = Case("clique", "clique", budget, links)
        times = measurements.of(case, policy_key("clique", links, budget), both)
        return {name: times[name] for name in (both if factor == "+ features" else (PLAIN,))}
    policy = "solver" if factor == "+ solver" else "auto"
    return {PLAIN: measure_policy(measurements, policy, links, budget)}


def _structure_first(workload: Workload, partitions: Partitions, budget: int) -> Plan:
    """Structure sharded, the same features on every GPU in what is left, the rest on the host.
    Collective.
    """

    def choose() -> Plan:
        structure, features = workload.items
        whole = bytes_on_gpu(structure, tiers_of_ratio(structure, 1.0, partitions), partitions)
        sharded = tiers_of_ratio(structure, min(1.0, budget / whole), partitions)
        left = max(0, budget - bytes_on_gpu(structure, sharded, partitions))
        near = min(features.rows, left // workload.row_bytes)
        placed = (
            Placement.of(structure, sharded),
            Placement.of(features, Tiers(replicated=near, host=features.rows - near)),
        )
        return Plan("by hand", workload.session.world, budget, placed, partitions)

    return workload.session.first_does(choose)
