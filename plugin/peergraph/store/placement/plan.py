"""Plans: which rows of each item are in which tier, by name or by a budget (XGNN 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate, pairwise
from typing import Any

from peergraph.json_fields import Fields
from peergraph.memory import Tiers
from peergraph.memory.table.partitions import Partitions, one_partition_per_gpu
from peergraph.store.input.source import NODE, EdgeType, NodeType
from peergraph.store.placement.prediction import Prediction, format_predictions

PLAN_NAMES = ("auto", "replicated", "sharded", "host", "solver")


@dataclass(frozen=True)
class Item:
    """Something to place: ids, a relation's structure, a node table or an edge table.

    Args:
        kind: "ids", "structure", "node table" or "edge table".
        name: of the type and the table, as printed.
        rows: rows, hottest first where the rows are ordered by hotness.
        bytes_of: bytes of the first k rows.
        of: the node or edge type.
        parts_of: gives the bytes that each tier allocates, for given tiers and a number of
            ranks: of replicas, the host and the disk by rank, of the sharded tier by shard. None:
            even shares.
    """

    kind: str
    name: str
    rows: int
    bytes_of: Callable[[int], int]
    of: NodeType | EdgeType = NODE
    parts_of: Callable[[Tiers, int], Mapping[str, Sequence[int]]] | None = None

    def parts(self, tiers: Tiers, world_size: int) -> Mapping[str, Sequence[int]]:
        """See `parts_of`."""
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
        """Bytes of all rows."""
        return self.bytes_of(self.rows)


@dataclass(frozen=True)
class Placement:
    """An item's rows and bytes in each tier; `bytes_sharded` counts all ranks together."""

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
    def from_fields(cls, given: Fields) -> Placement:
        """From plain values, as in JSON; ``ValueError`` for values of other types."""
        given.only(*(field.name for field in fields(cls)))
        tiers = given.object("tiers")
        names = [field.name for field in fields(Tiers)]
        tiers.only(*names)
        return cls(
            given.text("kind"),
            given.text("name"),
            Tiers(**{name: tiers.integer(name) for name in names if tiers.has(name)}),
            given.integer("bytes_replicated"),
            given.integer("bytes_sharded"),
            given.integer("bytes_host"),
            given.integer("bytes_disk") if given.has("bytes_disk") else 0,
        )

    def bytes_per_rank(self, world_size: int, copies: int = 1) -> int:
        """Bytes of replicated and sharded rows on each rank, which stores `copies` partitions."""
        return self.bytes_replicated + -(-self.bytes_sharded * copies // world_size)


@dataclass(frozen=True)
class Plan:
    """The result of placement. ``print(plan)`` shows the tiers; plans compare by value.

    Args:
        name: as the user gave it.
        world_size: ranks.
        memory_budget: bytes of each rank; None: no limit.
        placements: of all items.
        partitions: which ranks store which of the sharded rows; None: each rank its share.
        predictions: the cost of reading each item, where the machine's links were known.
        over_machines: what ``machines="auto"`` has chosen, and why.
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
        """The plan's partitions, or where it has none, one on each rank."""
        return self.partitions or one_partition_per_gpu(self.world_size)

    @property
    def copies(self) -> int:
        """Partitions of the sharded rows on each rank: 1 where all ranks reach each other."""
        return self.partitions_in_use.copies

    def tiers(self, kind: str, name: str) -> Tiers:
        """The tiers of one item; ``KeyError`` if the plan does not have it."""
        for p in self.placements:
            if (p.kind, p.name) == (kind, name):
                return p.tiers
        raise KeyError(f"the plan places no {kind} {name!r}")

    def bytes_per_rank(self) -> int:
        """Bytes of replicated and sharded rows on each rank."""
        return sum(p.bytes_per_rank(self.world_size, self.copies) for p in self.placements)

    def bytes_host(self) -> int:
        """Bytes in the machine's memory, once for all ranks."""
        return sum(p.bytes_host for p in self.placements)

    def bytes_disk(self) -> int:
        """Bytes on disk, once for all ranks."""
        return sum(p.bytes_disk for p in self.placements)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Plan:
        """The plan of :meth:`to_dict`'s values.

        Raises:
            ValueError: the values are no plan; names the wrong one, and what was expected.
        """
        given = Fields(values, "not a plan: ")
        given.only(*(field.name for field in fields(cls)))
        predictions = given.objects("predictions") if given.has("predictions") else []
        partitions = None
        if given.has("partitions"):
            partitions = Partitions.from_fields(given.object("partitions"))
        plan = cls(
            given.text("name"),
            given.integer("world_size"),
            given.integer("memory_budget") if given.has("memory_budget") else None,
            tuple(map(Placement.from_fields, given.objects("placements"))),
            partitions,
            tuple(map(Prediction.from_fields, predictions)),
            given.text("over_machines") if given.has("over_machines") else None,
        )
        if plan.world_size < 1:
            given.fail("world_size", "at least 1")
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
            taken = (each, p.bytes_host, p.bytes_disk)[: len(sizes)]
            rows.append((p.kind, p.name, *parts, *map(format_bytes, taken)))
        total = (self.bytes_per_rank(), self.bytes_host(), self.bytes_disk())[: len(sizes)]
        rows.append(("total", "", *("" for _ in tiers), *map(format_bytes, total)))
        widths = [max(len(r[c]) for r in rows) for c in range(len(rows[0]))]
        budget = self.memory_budget
        limit = "" if budget is None else f", budget {format_bytes(budget)} a rank"
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        lines = [f"plan {self.name!r}: {ranks}{limit}; shares of rows by tier, and bytes"]
        if self.over_machines is not None:
            lines.append(f"  {self.over_machines}")
        for r in rows:
            cells = [t.ljust(w) for t, w in zip(r[:2], widths, strict=False)]
            cells += [t.rjust(w) for t, w in zip(r[2:], widths[2:], strict=True)]
            lines.append("  " + "  ".join(cells).rstrip())
        if self.predictions:
            lines.append(format_predictions(self.predictions))
        return "\n".join(lines)


def make_plan(name: str, items: list[Item], world_size: int, memory_budget: int | None) -> Plan:
    """A named plan.

    ``replicated``, ``sharded`` and ``host`` put all rows into that tier. ``auto`` goes through the
    items in order (structure comes first, XGNN 4.3) and, within the bytes that are left of the
    budget, replicates what fits, else shards, else leaves the coldest rows on the host.

    Raises:
        ValueError: an unknown name, or ``auto`` without a budget.
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
    """:func:`fit`, one item after the other."""
    chosen = []
    for item in items:
        tiers = fit(item, world_size, budget)
        budget -= Placement.of(item, tiers).bytes_per_rank(world_size)
        chosen.append(tiers)
    return chosen


def fit(item: Item, world_size: int, budget: int) -> Tiers:
    """The fastest tiers within `budget` bytes a rank.

    All replicated if that fits; else everything on GPUs, the hottest rows replicated as far as room
    is left; else as many of the hottest as fit sharded, the rest on the host.
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
    """The largest k in 0..limit for which a condition holds that fails for all above it."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def format_bytes(count: int) -> str:
    """Bytes as text: ``1.5 GiB``."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def _share(rows: int, total: int) -> str:
    if rows == 0:
        return "-"
    return "all" if rows == total else f"{100 * rows / total:.1f} %"
