"""Divides memory among items: by XGNN's ratios, by priority, and by the cost model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peergraph.memory import Tiers
from peergraph.memory.table.partitions import Partitions
from peergraph.memory.topology.topology import Topology
from peergraph.number_arguments import check_real
from peergraph.store.placement.cost_model import predict
from peergraph.store.placement.plan import Item
from peergraph.store.placement.prediction import Prediction
from peergraph.store.placement.reads import BatchReads
from peergraph.store.placement.tier_choice import bytes_on_gpu, choose_tiers, tiers_of_ratio

_STRUCTURE = ("structure", "edge ids")
Chooser = Callable[[Sequence[Item], int], list[Tiers]]


@dataclass(frozen=True)
class ShardRatios:
    """The user's ratios and priority (XGNN 4.3).

    Args:
        graph_ratio: the share of the bytes of structure and edge ids that is sharded over the GPUs;
            None: the plan chooses it.
        feature_ratio: the same for node and edge tables.
        first: which of "structure" and "features" gets memory first; None: the items that save most
            time.
    """

    graph_ratio: float | None = None
    feature_ratio: float | None = None
    first: str | None = None

    def __post_init__(self) -> None:
        for name, ratio in (
            ("graph_ratio", self.graph_ratio),
            ("feature_ratio", self.feature_ratio),
        ):
            check_real(name, ratio, 0, 1)
        if self.first not in (None, "structure", "features"):
            raise ValueError(f"first must be 'structure' or 'features', got {self.first!r}")

    @property
    def has_options(self) -> bool:
        """Whether the user gave any of these options."""
        return self != ShardRatios()

    def of(self, item: Item) -> float | None:
        """Returns the ratio of an item."""
        return self.graph_ratio if item.kind in _STRUCTURE else self.feature_ratio


def choose_by_cost(
    reads: BatchReads, topology: Topology, partitions: Partitions, *, replicate: bool = True
) -> Chooser:
    """Chooses tiers by :func:`choose_tiers`."""

    def choose(items: Sequence[Item], budget: int) -> list[Tiers]:
        loads = [reads.access_pattern(item) for item in items]
        return choose_tiers(loads, topology, partitions, budget, replicate=replicate)

    return choose


def place_items(
    items: Sequence[Item],
    budget: int | None,
    ratios: ShardRatios,
    partitions: Partitions,
    rest: Chooser,
) -> list[Tiers]:
    """Chooses the tiers of all items. Items with a ratio are placed first; `rest` places the others
    in the memory that is left.

    Args:
        budget: the bytes that items may take on each GPU; None: no limit.

    Raises:
        ValueError: the ratios need more memory than the budget.
    """
    chosen: dict[int, Tiers] = {}
    for index, item in enumerate(items):
        ratio = ratios.of(item)
        if ratio is not None:
            chosen[index] = tiers_of_ratio(item, ratio, partitions)

    def placed_bytes() -> int:
        return sum(bytes_on_gpu(items[i], tiers, partitions) for i, tiers in chosen.items())

    if budget is not None and placed_bytes() > budget:
        raise ValueError(
            f"graph_ratio and feature_ratio take {placed_bytes()} bytes of each rank, "
            f"the budget is {budget}"
        )
    open_items = [i for i in range(len(items)) if i not in chosen]
    for group in _by_priority(items, open_items, ratios.first):
        left = 0 if budget is None else budget - placed_bytes()
        chosen.update(zip(group, rest([items[i] for i in group], left), strict=True))
    return [chosen[i] for i in range(len(items))]


def _by_priority(items: Sequence[Item], indices: list[int], first: str | None) -> list[list[int]]:
    """Returns groups of items, in the order in which they get memory."""
    if first is None:
        return [indices]
    structure = [i for i in indices if items[i].kind in _STRUCTURE]
    tables = [i for i in indices if items[i].kind not in _STRUCTURE]
    return [structure, tables] if first == "structure" else [tables, structure]


def predict_items(
    items: Sequence[Item], tiers: Sequence[Tiers], reads: BatchReads, partitions: Partitions
) -> tuple[Prediction, ...]:
    """Counts the reads of every item."""
    return tuple(
        predict(reads.access_pattern(item), chosen, partitions)
        for item, chosen in zip(items, tiers, strict=True)
    )
