"""Plans: the tier of each row of each item, chosen by name or by a budget (XGNN 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate, pairwise
from typing import Any

from peergraph.json_fields import Fields
from peergraph.memory import Tiers
from peergraph.memory.table.partitions import Partitions, one_partition_per_gpu
from peergraph.printing import format_bytes, format_share, table_lines
from peergraph.store.input.source import NODE, EdgeType, NodeType
from peergraph.store.placement.prediction import Prediction, format_predictions

PLAN_NAMES = ("auto", "replicated", "sharded", "host", "solver")


@dataclass(frozen=True)
class Item:
    """A part of a store that is placed: ids, a relation's structure, a node or an edge table.

    Args:
        kind: "ids", "structure", "node table" or "edge table".
        name: the name of the type and the table, as printed.
        rows: the number of rows. If rows are ordered by hotness, the hottest come first.
        bytes_of: returns the bytes of the first k rows.
        of: the node or edge type.
        parts_of: returns the bytes that each tier allocates, given the tiers and the number of
            ranks: for replicas, host and disk by rank, for the sharded tier by shard. None: even
            shares.
    """

    kind: str
    name: str
    rows: int
    bytes_of: Callable[[int], int]
    of: NodeType | EdgeType = NODE
    parts_of: Callable[[Tiers, int], Mapping[str, Sequence[int]]] | None = None

    def parts(self, tiers: Tiers, world_size: int) -> Mapping[str, Sequence[int]]:
        """Returns the bytes that each tier allocates: see `parts_of`."""
        if self.parts_of is not None:
            return self.parts_of(tiers, world_size)
        placed = Placement.of(self, tiers)
        return {
            "replicated": [placed.bytes_replicated] * world_size,
            "sharded": [-(-placed.bytes_sharded // world_size)] * world_size,
            "host": [placed.bytes_host],
            "disk": [placed.bytes_disk],
        }

    @property
    def num_bytes(self) -> int:
        """The bytes of all rows."""
        return self.bytes_of(self.rows)


@dataclass(frozen=True)
class Placement:
    """The rows and bytes of an item on each tier; `bytes_sharded` is the sum of all ranks."""

    kind: str
    name: str
    tiers: Tiers
    bytes_replicated: int
    bytes_sharded: int
    bytes_host: int
    bytes_disk: int = 0

    @classmethod
    def of(cls, item: Item, tiers: Tiers) -> Placement:
        """Places the item's rows in the given tiers."""
        counts = (tiers.replicated, tiers.sharded, tiers.host, tiers.disk)
        upto = [item.bytes_of(end) for end in accumulate(counts, initial=0)]
        return cls(item.kind, item.name, tiers, *(b - a for a, b in pairwise(upto)))

    @classmethod
    def from_fields(cls, values: Fields) -> Placement:
        """Reads a placement from JSON fields. Raises ``ValueError`` for invalid ones."""
        values.only(*(field.name for field in fields(cls)))
        tiers = values.object("tiers")
        names = [field.name for field in fields(Tiers)]
        tiers.only(*names)
        return cls(
            values.text("kind"),
            values.text("name"),
            Tiers(**{name: tiers.integer(name) for name in names if tiers.has(name)}),
            values.integer("bytes_replicated"),
            values.integer("bytes_sharded"),
            values.integer("bytes_host"),
            values.integer("bytes_disk") if values.has("bytes_disk") else 0,
        )

    def bytes_per_rank(self, world_size: int, copies: int = 1) -> int:
        """Returns the bytes of replicated and sharded rows on a rank with `copies` partitions."""
        return self.bytes_replicated + -(-self.bytes_sharded * copies // world_size)


@dataclass(frozen=True)
class Plan:
    """The result of placement. ``print(plan)`` shows the tiers. Plans compare by value.

    Args:
        name: the name that the user gave.
        world_size: the number of ranks.
        memory_budget: the bytes that each rank may take; None: no limit.
        placements: the placements of all items.
        partitions: the sharded rows that each rank stores; None: each rank stores its share.
        predictions: the expected reads of each item, if the machine's links were known.
        over_machines: the choice of ``machines="auto"``, and its reason.
    """

    name: str
    world_size: int
    memory_budget: int | None
    placements: tuple[Placement, ...]
    partitions: Partitions | None = None
    predictions: tuple[Prediction, ...] = ()
    over_machines: str | None = None

    @property
    def partitions_in_use(self) -> Partitions:
        """The partitions of the plan. If it has none, rank i stores partition i."""
        return self.partitions or one_partition_per_gpu(self.world_size)

    @property
    def copies(self) -> int:
        """The number of partitions on each rank: 1 if all ranks reach each other's memory."""
        return self.partitions_in_use.copies

    def tiers(self, kind: str, name: str) -> Tiers:
        """Returns the tiers of an item. Raises ``KeyError`` if the plan does not contain it."""
        for p in self.placements:
            if (p.kind, p.name) == (kind, name):
                return p.tiers
        raise KeyError(f"the plan places no {kind} {name!r}")

    def bytes_per_rank(self) -> int:
        """Returns the bytes of replicated and sharded rows on each rank."""
        return sum(p.bytes_per_rank(self.world_size, self.copies) for p in self.placements)

    def bytes_host(self) -> int:
        """Returns the bytes in host memory, for all ranks together."""
        return sum(p.bytes_host for p in self.placements)

    def bytes_disk(self) -> int:
        """Returns the bytes on disk, for all ranks together."""
        return sum(p.bytes_disk for p in self.placements)

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Plan:
        """Makes the plan of the values that :meth:`to_dict` returned.

        Raises:
            ValueError: a value is wrong. The error names it, and what was expected.
        """
        plan_fields = Fields(values, "not a plan: ")
        plan_fields.only(*(field.name for field in fields(cls)))
        predictions = plan_fields.objects("predictions") if plan_fields.has("predictions") else []
        partitions = None
        if plan_fields.has("partitions"):
            partitions = Partitions.from_fields(plan_fields.object("partitions"))
        plan = cls(
            plan_fields.text("name"),
            plan_fields.integer("world_size"),
            plan_fields.integer("memory_budget") if plan_fields.has("memory_budget") else None,
            tuple(map(Placement.from_fields, plan_fields.objects("placements"))),
            partitions,
            tuple(map(Prediction.from_fields, predictions)),
            plan_fields.text("over_machines") if plan_fields.has("over_machines") else None,
        )
        if plan.world_size < 1:
            plan_fields.fail("world_size", "at least 1")
        return plan

    def __str__(self) -> str:
        tiers = ["replicated", "sharded", "host"]
        sizes = ["each rank", "host memory"]
        spills = any(p.tiers.disk for p in self.placements)
        if spills:
            tiers, sizes = [*tiers, "disk"], [*sizes, "on disk"]
        rows: list[tuple[str, ...]] = [("", "", *tiers, *sizes)]
        for p in self.placements:
            each = p.bytes_per_rank(self.world_size, self.copies)
            parts = [_share(getattr(p.tiers, tier), p.tiers.rows) for tier in tiers]
            used = (each, p.bytes_host, p.bytes_disk)[: len(sizes)]
            rows.append((p.kind, p.name, *parts, *map(format_bytes, used)))
        total = (self.bytes_per_rank(), self.bytes_host(), self.bytes_disk())[: len(sizes)]
        rows.append(("total", "", *("" for _ in tiers), *map(format_bytes, total)))
        budget = self.memory_budget
        limit = "" if budget is None else f", budget {format_bytes(budget)} a rank"
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        lines = [f"plan {self.name!r}: {ranks}{limit}; shares of rows by tier, and bytes"]
        if self.over_machines is not None:
            lines.append(f"  {self.over_machines}")
        lines += table_lines(rows, 2)
        if self.predictions:
            lines.append(format_predictions(self.predictions))
        return "\n".join(lines)


def make_plan(name: str, items: list[Item], world_size: int, memory_budget: int | None) -> Plan:
    """Makes a plan by its name.

    ``replicated``, ``sharded`` and ``host`` put all rows into that tier. ``auto`` places the items
    in order, structure first (XGNN 4.3). It replicates an item if it fits into the rest of the
    budget, otherwise it shards the item, and leaves the coldest rows in host memory if needed.

    Raises:
        ValueError: the name is unknown, or the name is ``auto`` and there is no budget.
    """
    fixed = {
        "replicated": Tiers.all_replicated,
        "sharded": Tiers.all_sharded,
        "host": Tiers.all_host,
    }
    if name in fixed:
        placements = tuple(Placement.of(item, fixed[name](item.rows)) for item in items)
        return Plan(name, world_size, memory_budget, placements)
    if name != "auto":
        raise ValueError(f"plan must be a Plan or one of {', '.join(PLAN_NAMES)}, got {name!r}")
    if memory_budget is None:
        raise ValueError("plan 'auto' needs a memory_budget")
    tiers = fit_all(items, world_size, memory_budget)
    placements = tuple(map(Placement.of, items, tiers))
    return Plan(name, world_size, memory_budget, placements)


def fit_all(items: Sequence[Item], world_size: int, budget: int) -> list[Tiers]:
    """Calls :func:`fit` for one item after the other. Returns their tiers."""
    chosen = []
    for item in items:
        tiers = fit(item, world_size, budget)
        budget -= Placement.of(item, tiers).bytes_per_rank(world_size)
        chosen.append(tiers)
    return chosen


def fit(item: Item, world_size: int, budget: int) -> Tiers:
    """Chooses the fastest tiers of an item within `budget` bytes on each rank.

    All rows are replicated if they fit. Otherwise, if all rows fit on the GPUs together, rows are
    sharded, and as many of the hottest as fit are replicated. Otherwise as many of the hottest rows
    as fit are sharded, and the others stay in host memory.
    """

    def on_each_rank(replicated: int, gpu: int) -> int:
        on_all = item.bytes_of(replicated)
        sharded = item.bytes_of(gpu) - on_all
        return on_all + -(-sharded // world_size)

    if item.num_bytes <= budget:
        return Tiers.all_replicated(item.rows)
    if world_size == 1:
        hot = largest(item.rows, lambda k: item.bytes_of(k) <= budget)
        return Tiers(replicated=hot, host=item.rows - hot)
    if on_each_rank(0, item.rows) <= budget:
        hot = largest(item.rows, lambda k: on_each_rank(k, item.rows) <= budget)
        return Tiers(replicated=hot, sharded=item.rows - hot)
    gpu = largest(item.rows, lambda k: on_each_rank(0, k) <= budget)
    return Tiers(sharded=gpu, host=item.rows - gpu)


def largest(limit: int, holds: Callable[[int], bool]) -> int:
    """Returns the largest k in 0..limit for which `holds(k)`. Above it, the condition must fail."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _share(rows: int, total: int) -> str:
    return "all" if rows == total > 0 else format_share(rows / max(1, total))
