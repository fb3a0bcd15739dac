"""The plan of full-graph training: resident or offloaded, memory, exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from peergraph.fullgraph.exchange.mode_cost import STAGED_MODES, quickest, sum_costs
from peergraph.fullgraph.plan.format_plan import graph_lines, offload_lines, resident_lines
from peergraph.fullgraph.plan.memory_items import GraphFacts, total_bytes
from peergraph.fullgraph.plan.offload_cost import DEVICE
from peergraph.fullgraph.plan.offload_plan import OffloadPlan, make_offload_plan
from peergraph.fullgraph.plan.plan_limits import PlanLimits
from peergraph.fullgraph.plan.resident_plan import NetworkBytes, ResidentPlan
from peergraph.fullgraph.plan.schedule import RecordedModel
from peergraph.fullgraph.plan.spread import Spread
from peergraph.memory import Topology
from peergraph.printing import format_bytes
from peergraph.store import EdgeType

_UNKNOWN_MEMORY = 1 << 50
# Columns of sums for which the mode is shown, of floats.
_SHOWN_WIDTHS, _FLOAT_BYTES = (16, 32, 64, 128, 256, 512), 4


@dataclass(frozen=True)
class FullGraphPlan:
    """What lies where, what is exchanged, and in which mode. ``print(plan)`` shows it.

    Args:
        resident: memory and exchange of training with all rows on the devices.
        topology: the links by which exchanges are chosen.
        limits: what it was made for.
        mode: how rows are exchanged: "halo", "blocks" or "in_kernel".
        reason: why that mode, in words.
        decision: resident or offloaded, and why.
        offload: of training with rows in host memory; None: everything is on the devices.
        candidates: modes that :meth:`mode_for` chooses from: one with stages, since each has a list
            of the edges of its own, and ``in_kernel``.
        spreads: counted rows of chunks, for offloaded training.
    """

    resident: ResidentPlan
    topology: Topology
    limits: PlanLimits
    mode: str
    reason: str
    decision: str = ""
    offload: OffloadPlan | None = None
    candidates: tuple[str, ...] = ()
    spreads: tuple[Spread, ...] = ()

    @classmethod
    def make(
        cls,
        facts: GraphFacts,
        topology: Topology,
        limits: PlanLimits | None = None,
        *,
        model: RecordedModel | None = None,
        assumed: Callable[[GraphFacts], RecordedModel] | None = None,
        spreads: Sequence[Spread] | Callable[[], Sequence[Spread]] = (),
    ) -> FullGraphPlan:
        """Returns the plan of a graph whose nodes, edges and remote rows have been counted.

        Args:
            facts: counts of the graph's nodes, edges and remote rows.
            topology: the links between ranks and their hosts.
            limits: what may be used; None: there are no limits.
            model: that is trained; None: not known.
            assumed: returns the model that is assumed where `model` is None, to decide whether
                rows are offloaded; None: the graph alone decides.
            spreads: counted rows of chunks, for offloaded training, or a function that counts them,
                which is called if rows are offloaded.

        Raises:
            ValueError: a mode that is not for these ranks, offloaded training of a model that is
                not known, or too little memory; the message has a table of what is needed and for
                what.
        """
        limits = PlanLimits() if limits is None else limits
        if limits.host_memory is None:
            limits = replace(limits, host_memory=topology.host_memory or _UNKNOWN_MEMORY)
        memory_budget, mode, offload = limits.memory_budget, limits.mode, limits.offload
        resident = ResidentPlan.make(facts, topology, model, limits.modes)
        if mode is not None and mode not in resident.usable:
            raise ValueError(
                f"mode {mode!r} is not for these ranks, expected one of {list(resident.usable)}"
            )
        fitting = resident.fitting_modes(memory_budget)
        allowed = [name for name in fitting if mode in (None, name)]
        if offload is False and not allowed:
            assert memory_budget is not None
            raise ValueError(resident.describe_excess(mode, memory_budget))
        peak, assumption = resident.peak_bytes(mode), None
        if model is None and assumed is not None and memory_budget is not None:
            assumption = assumed(facts)
            of_model = assumption.resident_items(facts)
            peak += max(total_bytes(of_model, facts.world_size))
        too_large = memory_budget is not None and peak > memory_budget
        offloaded, counted = None, tuple[Spread, ...]()
        if offload or (offload is None and (too_large or limits.num_chunks is not None)):
            counted = tuple(spreads() if callable(spreads) else spreads)
            trained = model or assumption
            if memory_budget is None:
                raise ValueError("offloaded training needs a memory_budget, got None")
            if trained is None:
                raise ValueError("offloaded training needs a model, got None")
            offloaded = make_offload_plan(facts, topology, trained, limits, counted)
            allowed = [name for name in resident.usable if mode in (None, name)]
        asked = offload if limits.num_chunks is None else True
        chosen = quickest(resident.seconds, allowed, topology.work)
        return cls(
            resident=resident,
            topology=topology,
            limits=limits,
            mode=chosen,
            reason=_reason(resident, mode, fitting),
            decision=_decision(asked, too_large, peak, memory_budget, assumption),
            offload=offloaded,
            candidates=_candidates(resident.seconds, allowed),
            spreads=counted,
        )

    @property
    def chooses_by_width(self) -> bool:
        """Whether sums of each width have a mode of their own; else all have :attr:`mode`."""
        return self.world_size > 1 and self.offload is None and "in_kernel" in self.candidates[1:]

    def mode_for(self, edge_type: EdgeType, row_bytes: int) -> str:
        """Returns the mode that is expected to be the quickest for a sum over a relation.

        It is one of :attr:`candidates`. :attr:`mode` is the quickest for a whole epoch.

        Args:
            edge_type: the relation.
            row_bytes: bytes of a row of the sum.
        """
        volume, nodes = self.facts.volumes[edge_type], self.facts.nodes
        ends = nodes[edge_type[0]], nodes[edge_type[2]]
        costs = sum_costs(volume, *ends, row_bytes, self.topology)
        seconds = {name: cost.seconds for name, cost in costs.items()}
        return quickest(seconds, self.candidates or (self.mode,), self.topology.work)

    def with_model(self, model: RecordedModel) -> FullGraphPlan:
        """Returns the plan of the same graph for another model.

        A graph that has been partitioned stays resident, or offloaded in as many chunks.

        Raises:
            ValueError: as :meth:`make`; a resident graph does not fit with this model.
        """
        limits = replace(self.limits, mode=None, offload=None, hidden_bytes=None)
        if self.offload is not None:
            count, hidden_bytes = self.offload.num_chunks, self.limits.hidden_bytes
            limits = replace(limits, offload=True, num_chunks=count, hidden_bytes=hidden_bytes)
        plan = FullGraphPlan.make(
            self.facts, self.topology, limits, model=model, spreads=self.spreads
        )
        if self.offload is None and plan.offload is not None:
            raise ValueError(
                f"{model.name} does not fit on the devices: {plan.decision}. "
                "Partition the graph again with this model, or with offload=True"
            )
        return plan

    @property
    def facts(self) -> GraphFacts:
        """How many nodes, edges and remote rows the graph has."""
        return self.resident.facts

    @property
    def model(self) -> RecordedModel | None:
        """The model that is trained; None: not known."""
        return self.resident.model

    @property
    def network(self) -> NetworkBytes | None:
        """Bytes that machines send each other. None for one machine, and for offloaded rows, whose
        bytes are in `offload`.
        """
        return None if self.offload is not None else self.resident.network

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.facts.world_size

    @property
    def bytes_by_rank(self) -> tuple[int, ...]:
        """Bytes of each rank's device, with the buffers of the exchange or of chunks."""
        if self.offload is not None:
            stored = self.offload.bytes_by_tier[DEVICE]
            return tuple(n + stored for n in total_bytes(self.offload.items, self.world_size))
        return self.resident.bytes_by_rank(self.mode)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        resident = self.resident
        return {
            "world_size": self.world_size,
            "order": self.facts.order,
            "nodes": {t: list(counts) for t, counts in self.facts.nodes.items()},
            "relations": [
                {"type": list(t), "rows": v.rows, "edges": v.edges}
                for t, v in self.facts.volumes.items()
            ],
            "model": None if self.model is None else self.model.name,
            "memory_budget": self.limits.memory_budget,
            "decision": self.decision,
            "offload": None if self.offload is None else self.offload.to_dict(),
            "network": None if self.network is None else self.network._asdict(),
            "mode": self.mode,
            "reason": self.reason,
            "bytes": {item.name: list(item.num_bytes) for item in resident.items},
            "buffers": {mode: list(num_bytes) for mode, num_bytes in resident.buffers.items()},
            "sums": [
                {
                    "row_bytes": each.row_bytes,
                    "count": each.count,
                    "modes": {m: {"received": each.received(m)} for m in each.modes},
                }
                for each in resident.sums
            ],
        }

    def __str__(self) -> str:
        lines = [*graph_lines(self.facts, self.topology), f"  {self.decision}"]
        if self.offload is not None:
            return "\n".join([*lines, *offload_lines(self.offload)])
        lines += resident_lines(self.resident, self.mode, self.reason, self.limits.memory_budget)
        if self.chooses_by_width:
            by_mode: dict[str, list[str]] = {}
            for width in _SHOWN_WIDTHS:
                of_types = {self.mode_for(t, width * _FLOAT_BYTES) for t in self.facts.volumes}
                by_mode.setdefault(" or ".join(sorted(of_types)), []).append(str(width))
            if list(by_mode) != [self.mode]:
                shown = (f"{mode} of {', '.join(widths)}" for mode, widths in by_mode.items())
                lines.append(f"  sums by their columns: {'; '.join(shown)}")
        return "\n".join(lines)


def _decision(
    asked: bool | None,
    too_large: bool,
    peak: int,
    budget: int | None,
    assumption: RecordedModel | None,
) -> str:
    """Resident or offloaded, and why."""
    offloaded = too_large if asked is None else asked
    name = "offloaded" if offloaded else "resident"
    of_model = "" if assumption is None else f", if the model is {assumption.name} (assumed)"
    limit = "no budget" if budget is None else f"a budget of {format_bytes(budget)}"
    takes = f"resident training takes {format_bytes(peak)} on the busiest rank, {limit}{of_model}"
    return f"{name}{', as asked for' if asked is not None else ''}: {takes}"


def _candidates(seconds: dict[str, float], usable: Sequence[str]) -> tuple[str, ...]:
    staged = [mode for mode in usable if mode in STAGED_MODES]
    best = (min(staged, key=seconds.__getitem__),) if staged else ()
    return best + tuple(mode for mode in usable if mode not in STAGED_MODES)


def _reason(resident: ResidentPlan, asked: str | None, fitting: Sequence[str]) -> str:
    """Why a mode of exchange is used, in words."""
    facts, seconds = resident.facts, resident.seconds
    if asked is not None:
        return "asked for"
    if facts.world_size == 1:
        return "one rank has all rows, nothing is exchanged"
    per = "an epoch" if resident.sums else "a sum of 128 columns"
    times = ", ".join(f"{name} {1e3 * seconds[name]:.3g} ms" for name in resident.usable)
    volume = sum(sum(v.received) for v in facts.volumes.values())
    whole = sum((facts.world_size - 1) * sum(facts.nodes[t[0]]) for t in facts.volumes)
    share = f"{100 * volume / max(1, whole):.0f} % of remote rows are needed"
    left_out = [name for name in resident.usable if name not in fitting]
    without = f"; no room for {', '.join(left_out)}" if left_out else ""
    return f"predicted for {per}: {times}; {share}{without}"
