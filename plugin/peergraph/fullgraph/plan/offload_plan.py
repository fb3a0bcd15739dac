"""The plan of offloaded training: chunks, where rows are placed, bytes over links."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from peergraph.fullgraph.plan.memory_items import GraphFacts, MemoryItem, total_bytes
from peergraph.fullgraph.plan.offload_cost import (
    DEVICE,
    FILE,
    HOST,
    USER,
    ChunkSize,
    PassBytes,
    Placement,
    chunk_bytes,
    expected_chunks,
    pass_bytes,
    place_rows,
    row_list_bytes,
    tier_bytes,
    transfer_seconds,
)
from peergraph.fullgraph.plan.plan_limits import PlanLimits
from peergraph.fullgraph.plan.schedule import BEFORE, SOURCE, RecordedModel, Schedule
from peergraph.fullgraph.plan.spread import Spread, spread_at
from peergraph.memory import Topology
from peergraph.printing import format_bytes, table_lines

CHUNK_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Numbers of chunks of a rank that a plan chooses from."""
_AS_QUICK, _CHUNK_SHARE = 1.02, 1 / 16


@dataclass(frozen=True)
class OffloadPlan:
    """How a graph larger than the memory of the GPUs is trained.

    Args:
        num_chunks: chunks of each rank's nodes.
        chunks_reason: why so many.
        model: that is trained.
        hidden_bytes: bytes of an element of rows that passes store; None: as layers compute them.
        items: memory of each rank's device, without stored rows.
        schedule: the passes of an epoch.
        row_bytes: of all rows of the busiest rank, by name.
        placement: the tier of each row set.
        spread: rows that chunks need.
        passes: the bytes that they move.
        device_room, host_room, file_room: bytes of one rank for stored rows.
        memory_budget: bytes of each rank's device.
        stages_sources: see :func:`chunk_bytes`.
    """

    num_chunks: int
    chunks_reason: str
    model: RecordedModel
    hidden_bytes: int | None
    items: tuple[MemoryItem, ...]
    schedule: Schedule
    row_bytes: dict[str, int]
    placement: Placement
    spread: Spread
    passes: tuple[PassBytes, ...]
    device_room: int
    host_room: int
    file_room: int
    memory_budget: int
    stages_sources: bool

    @property
    def features_on_device(self) -> bool:
        """Whether rows of the user's tables may take memory of the device.

        Of a model that is assumed it is not known whether each epoch reads them.
        """
        features = (rows.name for rows in self.schedule.rows if rows.is_input)
        tiers = self.placement.tiers
        return self.model.assumed or all(tiers[name] == DEVICE for name in features)

    @property
    def needs_source_counts(self) -> bool:
        """Whether rows of a chunk's sources are copied, so that their number counts."""
        return self.stages_sources or self.schedule.adds_to_sources

    def missing_bytes(self, chunk: ChunkSize, rank: int) -> int:
        """Returns how many bytes more than planned a rank's largest chunk takes; at least 0.

        Args:
            chunk: as it was counted.
            rank: of the chunk.
        """

        def missing(stages_sources: bool) -> int:
            num_bytes = chunk_bytes(self.schedule, chunk, stages_sources)
            return max(0, num_bytes - self.items[-1].num_bytes[rank])

        needed_more = missing(self.stages_sources)
        if needed_more and self.device_room - needed_more < self.source_bytes:
            # Rows of sources have no room on the device any more.
            return missing(True)
        return needed_more

    @property
    def network_bytes(self) -> int:
        """Bytes that a machine receives from others in an epoch; it sends about as many."""
        return sum(p.network for p in self.passes)

    @property
    def bytes_by_tier(self) -> dict[str, int]:
        """The most bytes of stored rows of one rank on the "device", the "host" and in "file"s."""
        return tier_bytes(self.schedule, self.row_bytes, self.placement)

    @property
    def keeps_sources_on_device(self) -> bool:
        """Whether all rows that sums read stay on the device as long as they exist."""
        tiers, rows = self.placement.tiers, self.schedule.rows
        return all(tiers[r.name] == DEVICE for r in rows if r.role == SOURCE)

    @property
    def has_sources_on_device(self) -> bool:
        """Whether all rows that a pass reads in the order of edges are on the device by then."""
        placement = self.placement
        return all(
            placement.tiers[name] == DEVICE or (name, number) in placement.loaded
            for number, step in enumerate(self.schedule.passes)
            for name in (*step.sources, *step.adds)
        )

    @property
    def keeps_sums_on_device(self) -> bool:
        """Whether all rows of an epoch stay there, too, except those that are made before it."""
        tiers, rows = self.placement.tiers, self.schedule.rows
        computed = (r for r in rows if r.first > BEFORE)
        return self.keeps_sources_on_device and all(tiers[r.name] == DEVICE for r in computed)

    @property
    def source_bytes(self) -> int:
        """The most bytes of rows on one rank's device that are read in the order of edges."""
        schedule, tiers = self.schedule, self.placement.tiers
        sources = [r for r in schedule.rows if r.role == SOURCE and tiers[r.name] == DEVICE]
        by_pass = [0]
        for at in range(len(schedule.passes)):
            live = (r.name for r in sources if r.first <= at <= r.last)
            copied = (name for name, number in self.placement.loaded if number == at)
            by_pass.append(sum(self.row_bytes[name] for name in (*live, *copied)))
        return max(by_pass)

    @property
    def device_bytes(self) -> int:
        """Bytes of the busiest rank's device."""
        ranks = len(self.items[0].num_bytes)
        return max(total_bytes(self.items, ranks)) + self.bytes_by_tier[DEVICE]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        return {
            "num_chunks": self.num_chunks,
            "reason": self.chunks_reason,
            "model": self.model.name,
            "assumed_model": self.model.assumed,
            "hidden_bytes": self.hidden_bytes,
            "bytes": {item.name: list(item.num_bytes) for item in self.items},
            "rows": {
                name: {"bytes": size, "tier": self.placement.tiers[name]}
                for name, size in self.row_bytes.items()
            },
            "bytes_by_tier": self.bytes_by_tier,
            "alpha": self.spread.alpha,
            "network_bytes": self.network_bytes,
            "passes": [vars(p) for p in self.passes],
        }


def make_offload_plan(
    facts: GraphFacts,
    topology: Topology,
    model: RecordedModel,
    limits: PlanLimits,
    spreads: Sequence[Spread] = (),
) -> OffloadPlan:
    """Returns the plan whose epochs move the least over links among those that fit.

    Of numbers of chunks that move about as much, it is the smallest whose chunks take at most a
    sixteenth of the budget.

    Args:
        facts: of the graph.
        topology: the links between ranks and their hosts.
        model: that is trained.
        limits: with a budget, and bytes of the host.
        spreads: rows that chunks need, counted for some numbers of chunks; none: as of a random
            order of nodes.

    Raises:
        ValueError: not enough memory; the message has a table of what is needed and for what.
    """
    planner, num_chunks = _Planner(facts, model, limits, spreads), limits.num_chunks
    plans: list[OffloadPlan] = []
    refused = ""
    for count in CHUNK_COUNTS if num_chunks is None else (num_chunks,):
        plan = planner.plan(count)
        if isinstance(plan, OffloadPlan):
            plans.append(plan)
        else:
            refused = plan
    if not plans:
        raise ValueError(refused)
    reason = (
        "as asked for"
        if num_chunks is not None
        else f"the least transfers of {len(plans)} numbers that fit"
    )
    return replace(_least_moved(plans, topology), chunks_reason=reason)


def _least_moved(plans: Sequence[OffloadPlan], topology: Topology) -> OffloadPlan:
    """Returns the plan of the least transfers; of about equal ones, that of the fewest chunks."""
    seconds = [transfer_seconds(plan.passes, topology, plan.num_chunks) for plan in plans]
    limit = _AS_QUICK * min(seconds)
    quick = [plan for plan, time in zip(plans, seconds, strict=True) if time <= limit]
    # Small chunks leave memory for buffers that the plan does not count.
    small = [p for p in quick if max(p.items[-1].num_bytes) <= _CHUNK_SHARE * p.memory_budget]
    return small[0] if small else quick[-1]


class _Planner:
    """Plans a number of chunks.

    Args:
        facts, model, limits, spreads: see :func:`make_offload_plan`.
    """

    def __init__(
        self,
        facts: GraphFacts,
        model: RecordedModel,
        limits: PlanLimits,
        spreads: Sequence[Spread],
    ) -> None:
        assert limits.memory_budget is not None and limits.host_memory is not None
        self._facts, self._model, self._spreads = facts, model, spreads
        self._memory_budget, self._hidden_bytes = limits.memory_budget, limits.hidden_bytes
        self._host_room = max(0, limits.host_memory // facts.world_size)
        self._file_room = limits.file_memory // facts.world_size
        self._schedules = model.schedules(facts, limits.hidden_bytes)
        self._fixed = _device_items(facts, model)
        self._fixed += model.labelled_items(facts)

    def plan(self, count: int) -> OffloadPlan | str:
        """Returns the plan for a number of chunks, or why there is none.

        Sums that would go to the host are computed again if all rows that sums read fit on the
        device. Buffers for sources are needed where a whole row set does not fit there, and for
        rows that are widened.
        """
        spread = spread_at(self._facts, count, self._spreads)
        stored = self._schedules[0]
        if self._hidden_bytes is None:
            with_sums = self._place(stored, spread, stages=False)
            if isinstance(with_sums, OffloadPlan) and with_sums.keeps_sums_on_device:
                return with_sums
            for schedule in reversed(self._schedules[1:]):
                summing_again = self._place(schedule, spread, stages=False)
                if isinstance(summing_again, OffloadPlan) and summing_again.keeps_sources_on_device:
                    return summing_again
            if isinstance(with_sums, OffloadPlan) and with_sums.has_sources_on_device:
                return with_sums
        return self._place(stored, spread, stages=True)

    def _place(self, schedule: Schedule, spread: Spread, stages: bool) -> OffloadPlan | str:
        """Returns the plan with or without buffers for sources of this rank, or why there is none.

        Args:
            schedule: the passes.
            spread: rows that chunks need.
            stages: whether there are such buffers.
        """
        facts, count = self._facts, spread.chunks
        most = max(facts.rows)
        row_bytes = {r.name: r.stored_bytes(most, self._hidden_bytes) for r in schedule.rows}
        computed = {r.name: r.stored_bytes(most, None) for r in schedule.rows}
        staged = stages or facts.world_size > 1
        items = (
            *self._fixed,
            MemoryItem("row lists", "which rows chunks read",
                       row_list_bytes(facts, schedule, spread, stages)),
            MemoryItem("chunk", "rows of a chunk, staging",
                       tuple(chunk_bytes(schedule, chunk, staged)
                             for chunk in expected_chunks(facts, spread))),
        )  # fmt: skip
        device_room = self._memory_budget - max(total_bytes(items, facts.world_size))
        if device_room < 0:
            return _no_device(items, facts.world_size, self._memory_budget, count)
        rooms = device_room, self._host_room, self._file_room
        placement = place_rows(schedule, row_bytes, rooms, computed)
        if placement is None:
            return _no_host(schedule, row_bytes, rooms, count)
        return OffloadPlan(
            num_chunks=count,
            chunks_reason="",
            model=self._model,
            hidden_bytes=self._hidden_bytes,
            items=items,
            schedule=schedule,
            row_bytes=row_bytes,
            placement=placement,
            spread=spread,
            passes=tuple(
                pass_bytes(number, schedule, facts, row_bytes, placement, spread)
                for number in range(len(schedule.passes))
            ),
            device_room=device_room,
            host_room=self._host_room,
            file_room=self._file_room,
            memory_budget=self._memory_budget,
            stages_sources=staged,
        )


def _device_items(facts: GraphFacts, model: RecordedModel) -> list[MemoryItem]:
    """What each rank's device holds besides rows of features and layers.

    What tables of nodes have besides features stays on the device.
    """
    features = (rows for rows in model.schedule.rows if rows.is_input)
    feature_bytes = sum(rows.share * rows.row_bytes for rows in features)
    structure, transposes, lists, narrow, edge_rows = ([] for _ in range(5))
    for rank in range(facts.world_size):
        edges, rows = facts.num_edges[rank], facts.rows[rank]
        structure.append(4 * edges + 8 * (rows + 1))
        transposes.append(0 if model.sorts_by_chunk else 4 * edges + 8 * (rows + 1))
        received = sum(v.received[rank] + v.sent[rank] for v in facts.volumes.values())
        lists.append(8 * rows + 8 * received)
        narrow.append(max(0, math.ceil(facts.table_bytes(rank) - feature_bytes * rows)))
        edge_rows.append(
            sum(
                v.num_edges[rank] * facts.edge_row_bytes.get(t, 0) for t, v in facts.volumes.items()
            )
        )
    return [
        MemoryItem("structure", "in-edges of chunks", tuple(structure)),
        MemoryItem("transposes", "for gradients of sources", tuple(transposes)),
        MemoryItem("numbering", "user's ids; rows to exchange", tuple(lists)),
        MemoryItem("edge rows", "tables of edges", tuple(edge_rows)),
        MemoryItem("node rows", "labels, masks", tuple(narrow)),
    ]


def _no_device(items: Sequence[MemoryItem], ranks: int, budget: int, chunks: int) -> str:
    num_bytes = max(total_bytes(items, ranks))
    return (
        f"memory_budget of {format_bytes(budget)} ({budget} bytes) is not enough for offloaded "
        f"training in {chunks} chunks: the busiest of {ranks} rank{'s' if ranks > 1 else ''} needs "
        f"{format_bytes(num_bytes)} ({num_bytes} bytes) on its device before any rows of "
        "features:\n" + _table((i.name, i.what, max(i.num_bytes)) for i in items)
    )


def _no_host(
    schedule: Schedule,
    row_bytes: dict[str, int],
    rooms: Sequence[int],
    chunks: int,
) -> str:
    everywhere = place_rows(schedule, row_bytes, (rooms[0], 1 << 62, 0))
    assert everywhere is not None
    num_bytes = tier_bytes(schedule, row_bytes, everywhere)
    missing = num_bytes[HOST] - rooms[1] - rooms[2]
    room = {DEVICE: rooms[0], HOST: rooms[1], FILE: rooms[2]}
    rows = [
        (r.name, f"{r.columns} columns", row_bytes[r.name])
        for r in schedule.rows
        if everywhere.tiers[r.name] != USER
    ]
    return (
        f"host memory is not enough for offloaded training in {chunks} chunks: each rank needs "
        f"{format_bytes(num_bytes[HOST])} of the host and has {format_bytes(room[HOST])}, with "
        f"{format_bytes(room[DEVICE])} on its device and {format_bytes(room[FILE])} in files; "
        f"{format_bytes(max(0, missing))} are missing. Rows that exist at different times share "
        "memory:\n" + _table(rows)
    )


def _table(rows: Iterable[tuple[str, str, int]]) -> str:
    lines = [(name, what, format_bytes(size)) for name, what, size in rows if size]
    return "\n".join(table_lines(lines, 2))
