"""Stores of placement.py: built as a case says, and measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from harness.common import Mark, measure
from harness.ranks import Session
from harness.records import Timing
from inputs.arrays import check_rows
from torch import Tensor

from peergraph.memory import Tiers
from peergraph.memory.table.partitions import one_partition_per_gpu
from peergraph.memory.topology.topology import Topology
from peergraph.sampling import NeighborSampler
from peergraph.store import NODE, Plan, Store
from peergraph.store.placement.prediction import Prediction, total_link_bytes
from placing.workload import FEATURES, NAMES, Workload, plain_sampler

PLAIN, RESERVOIR = "plain", "reservoir"
MakeSampler = Callable[[Store, Workload], NeighborSampler]


@dataclass(frozen=True)
class Case:
    """How a store is planned.

    Args:
        label: of the row in the table.
        plan: as :meth:`Store.build` takes it.
        budget: bytes on each GPU, without the renumbering.
        topology: links to plan by.
        options: more arguments of :meth:`Store.build`.
    """

    label: str
    plan: str | Plan
    budget: int
    topology: Topology
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, workload: Workload) -> Store:
        """Collective."""
        session = workload.session
        planned: dict[str, Any] = {}
        if isinstance(self.plan, str):
            budget = self.budget + workload.id_map_bytes
            planned = {"memory_budget": budget, "topology": self.topology, **self.options}
        with session.stage(f"{self.label}: store built"):
            store = Store.build(
                workload.source(),
                plan=self.plan,
                hotness=workload.hotness,
                group=session.group,
                progress=False,
                **planned,
            )
        if session.rank == 0:
            print(f"{workload.spec.name}, {self.label}: {store.plan}", flush=True)
        return store


@dataclass(frozen=True)
class Measured:
    """Of one store: times by operation, and the fields of its records."""

    batches: Timing
    gathers: Timing | None
    fields: dict[str, Any]


def reservoir_sampler(store: Store, workload: Workload) -> NeighborSampler:
    """Draws by equal weights: like a reservoir it goes through every neighbour of a list."""
    if "w" not in store.edge_table_names():
        edges = store.num_edges()
        ones = torch.ones(edges, device=store.device) if workload.session.rank == 0 else None
        # They stand in for a way of drawing: the budget is not for them.
        store.contents.plan = replace(store.plan, memory_budget=None)
        store.add_edge_table("w", ones, plan="sharded")
    return NeighborSampler(store, list(workload.fanouts), edge_ids=False, weights="w")


def default_sampler(store: Store, workload: Workload) -> NeighborSampler:
    """Reads only the neighbours that are drawn."""
    return plain_sampler(store, workload.fanouts)


def measure_store(
    workload: Workload,
    store: Store,
    case: Case,
    make_sampler: MakeSampler = default_sampler,
    gathers: bool = False,
) -> Measured:
    """Times mini-batches, and gathers alone where asked for. Collective."""
    session = workload.session
    table, sampler = store.node_table("x"), make_sampler(store, workload)
    inputs = workload.inputs
    session.together(lambda: check_rows(case.label, table.gather(inputs[0]), inputs[0]))

    def step(i: int, mark: Mark) -> None:
        sample = workload.sample(sampler, i)
        mark("sample")
        table.gather(sample.nodes[NODE])
        mark("gather")

    batches = measure(session, step)
    alone = measure_gather(session, inputs, table.gather) if gathers else None
    return Measured(batches, alone, _fields(workload, store, case))


def measure_gather(
    session: Session, inputs: list[Tensor], gather: Callable[[Tensor], Tensor]
) -> Timing:
    """Times gathers of the mini-batches' inputs, by the device's clock alone. Collective."""
    return measure(session, lambda i, _: gather(inputs[i % len(inputs)]), hold=True)


def _fields(workload: Workload, store: Store, case: Case) -> dict[str, Any]:
    """What the records say besides times: inputs, hits, and the prediction."""
    tiers = {kind: store.plan.tiers(kind, name) for kind, name in NAMES.items()}
    hits = _measured_hits(workload, store, tiers[FEATURES])
    inputs = workload.mean_inputs
    fields: dict[str, Any] = {
        "graph": workload.spec.name,
        "dim": workload.dim,
        "fanout": "-".join(map(str, workload.fanouts)),
        "batch": workload.batch,
        "nodes": inputs,
        "budget_gib": case.budget / 2**30,
        "missing_bytes": hits[2] * inputs * workload.row_bytes,
        "host_gib": tiers[FEATURES].host * workload.row_bytes / 2**30,
    }
    fields |= {f"hit_{tier}": share for tier, share in zip(_TIERS, hits, strict=True)}
    predicted = workload.session.first_does(lambda: _predictions(workload, store, case, tiers))
    return fields | predicted_fields(predicted)


_TIERS = ("replicated", "sharded", "host")


def predicted_fields(predictions: tuple[Prediction, ...]) -> dict[str, Any]:
    """The expected hits of features, and the most bytes on a link."""
    links = total_link_bytes(predictions)
    peers = [row[j] for i, row in enumerate(links) for j in range(len(links)) if j != i]
    fields: dict[str, Any] = {
        "slowest_link_mb": max(peers, default=0.0) / 1e6,
        "host_mb": max(row[-1] for row in links) / 1e6,
    }
    hits = next(p.hits for p in predictions if p.kind == FEATURES)
    shares = zip(_TIERS, hits, strict=True)
    return fields | {f"predicted_hit_{tier}": share for tier, share in shares}


def _predictions(
    workload: Workload, store: Store, case: Case, tiers: Mapping[str, Tiers]
) -> tuple[Prediction, ...]:
    if store.plan.predictions:
        return store.plan.predictions
    partitions = store.plan.partitions or one_partition_per_gpu(store.plan.world_size)
    return workload.predict(tiers, partitions)


def _measured_hits(workload: Workload, store: Store, tiers: Tiers) -> tuple[float, float, float]:
    """The shares of the inputs, over all ranks, that lie on each tier. Collective."""
    order = store.id_map(NODE).to_internal
    near, on_gpus = tiers.replicated, tiers.replicated + tiers.sharded
    counts = torch.zeros(3, dtype=torch.int64)
    for ids in workload.inputs:
        rows = ids if order is None else order.as_tensor()[ids]
        counts[0] += int((rows < near).sum())
        counts[1] += int(((rows >= near) & (rows < on_gpus)).sum())
        counts[2] += int((rows >= on_gpus).sum())
    together = torch.stack(workload.session.group.all_gather(counts)).sum(0).double()
    stored_share, sharded, host = (together / together.sum().clamp(min=1)).tolist()
    return stored_share, sharded, host


def record_batches(session: Session, measured: Measured, **fields: Any) -> None:
    """Records a mini-batch. Collective."""
    record = {"op": "batch", **measured.fields, **fields}
    session.recorder.add(measured.batches, system="peergraph", **record)


def record_gathers(session: Session, measured: Measured, **fields: Any) -> None:
    """Records the gathers alone, with the rates of all rows and of those missing on GPUs."""
    if measured.gathers is None:
        return
    record = {**measured.fields, **fields}
    slowest = max(session.group.all_gather(measured.gathers.ms))
    record["bytes"] = record["nodes"] * record["dim"] * 4
    record["missing_gbs"] = record["missing_bytes"] / slowest / 1e6
    session.recorder.add(measured.gathers, system="peergraph", op="gather", **record)


class Measurements:
    """What was measured on a graph, so that stores that are alike are built only once."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._known: dict[Hashable, dict[str, Measured]] = {}

    def of(
        self,
        case: Case,
        key: Hashable,
        samplers: Mapping[str, MakeSampler] = MappingProxyType({PLAIN: default_sampler}),
    ) -> dict[str, Measured]:
        """Builds the store and times its mini-batches with each sampler. Collective.

        Args:
            key: the same for stores that are alike.
        """
        by_sampler = self._known.setdefault(key, {})
        missing = {name: make for name, make in samplers.items() if name not in by_sampler}
        if missing:
            store = case.build(self.workload)
            try:
                for name, make in missing.items():
                    by_sampler[name] = measure_store(self.workload, store, case, make)
            finally:
                store.close()
        return by_sampler


class Watch:
    """The time that a part may take: what would begin later is left out."""

    def __init__(self, session: Session, seconds: float) -> None:
        self._session = session
        self._end = time.perf_counter() + seconds

    def allows(self, what: str) -> bool:
        """Whether there is time left, as rank 0 sees it; if not, that is recorded. Collective."""
        left = self._session.group.broadcast(self._end - time.perf_counter())
        if left > 0:
            return True
        self._session.note(f"{what} is left out: no time")
        self._session.recorder.skip(what, "no time left for this part")
        return False
