"""The options of placement, by which users choose the memory that stores a graph."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

from torch import Tensor
from typing_extensions import TypedDict

from peergraph.memory.topology.topology import Topology
from peergraph.number_arguments import check_number
from peergraph.store.hotness.hotness import HotnessSpec
from peergraph.store.input.source import EdgeType
from peergraph.store.input.storage import StorageOption, checked_storage
from peergraph.store.placement.plan import Plan
from peergraph.store.placement.ratios import ShardRatios
from peergraph.store.placement.spill import Spill


class PlacementOptions(TypedDict, total=False):
    """Keyword arguments of :meth:`Store.build`, :meth:`Store.load` and the adapters' ``share``.

    All of them are optional.

    Args:
        plan: ``"auto"`` (the default), ``"replicated"``, ``"sharded"``, ``"host"``, ``"solver"``,
            or a :class:`Plan`. ``"auto"`` minimises the time of reads if
            :func:`peergraph.memory.measure_topology` has measured the machine's links. Otherwise it
            replicates what fits the budget, then shards, then uses host memory, structure before
            features (XGNN 4.3). Without a GPU, all ranks share one copy in the machine's memory.
            ``"solver"`` is ``"auto"`` with known links and without replication: XGNN's placement.
        memory_budget: the bytes that each rank may take of its GPU, id maps included. The default
            of ``"auto"`` and ``"solver"`` is 60 % of the free bytes, and ``"auto"`` fills it with
            replicated rows: give less if the model needs more than the rest. Other plans raise an
            error if they need more than a given budget.
        hotness: how often nodes are read. If rows are sharded or on several tiers, the nodes that
            are read most get the fastest memory. ``"out_degree"`` (the default: how often a node is
            an in-neighbour), ``"in_degree"``, the counts of :func:`peergraph.sampling.presample`,
            or values ``[num_nodes]`` (by node type). Rank 0's values are used.
        structure_hotness: how often lists of in-neighbours are read, in one of the same forms, or
            values ``[destinations]`` by edge type. Of counts, the reads of lists are used. By
            default, structure and features have the same order of nodes. A separate order, by reads
            per byte, takes a map of 4 bytes a destination in each rank's memory and a look-up for
            each list, but only if the plan splits the structure.
        graph_ratio: with ``"auto"``, the share (0..1) of the bytes of the structure that is sharded
            over the GPUs, hottest first; the rest is in host memory (XGNN's API). Items without a
            ratio are placed in the memory that is left.
        feature_ratio: the same for the bytes of node and edge tables.
        first: with ``"auto"``, which of ``"structure"`` and ``"features"`` gets memory first.
        topology: the links to plan for, instead of the measured ones: one GPU for each rank. Links
            that are masked in it are not used.
        spill: the folder for rows that do not fit into host memory. These are the coldest rows of
            the widest tables; without a GPU, the structure follows last. See docs/guides/disk.md.
        host_budget: the bytes of host memory that the store may take; default: the free bytes.
        machines: ``"replicate"`` (the default): each machine has a store of the whole graph, and
            reads nothing from other machines (WholeGraph III-D). Machines without a source receive
            the graph from another machine. ``"shard"``: each machine has the structure, the tables
            with at most 16 bytes a row, the hottest rows of the other tables, and its share of
            their other rows; loaders exchange rows batch by batch, on all ranks together.
            ``"auto"``: ``"replicate"`` if the graph fits the memory of each machine, otherwise
            ``"shard"``; ``print(store.plan)`` shows the reason. Space on disk (`spill`) does not
            count.
        hot_ratio: if rows are split over machines, the share (0..1) of the rows of each node table,
            hottest first, that every machine has; default 0.25. Equal on all machines.
        batches_per_exchange: if rows are split over machines, the number of consecutive batches
            whose rows a loader exchanges together; default 1. With more, fewer bytes cross the
            network, because a row that several of them need crosses it once, and a step takes less
            time where Python limits it. The received rows of up to twice as many batches are in
            memory. Equal on all machines.
        storage: the storage of tables of float32, float64, float16 or bfloat16: ``"float16"``,
            ``"bfloat16"``, ``"float8_e4m3"``, ``"float8_e5m2"``, ``"int8"`` (with a scale for each
            row) or ``"int8:N"`` (with a scale for each N columns of a row). It is given by the name
            of a node or edge table (``{"x": "bfloat16"}``), or by type and name (``{"paper": {"x":
            "int8"}}``). Reads return the data's dtype; see docs/guides/narrow_storage.md. Equal on
            all machines.
    """

    plan: str | Plan
    memory_budget: int | None
    hotness: HotnessSpec
    structure_hotness: HotnessSpec | Mapping[EdgeType, Tensor] | None
    graph_ratio: float | None
    feature_ratio: float | None
    first: str | None
    topology: Topology | None
    spill: str | PathLike[str] | None
    host_budget: int | None
    machines: str
    hot_ratio: float | None
    batches_per_exchange: int | None
    storage: StorageOption | None


MACHINE_PLANS = ("replicate", "shard", "auto")

# The hottest quarter of the nodes gets most reads of a graph with a power law.
DEFAULT_HOT_RATIO = 0.25
MAX_BATCHES_PER_EXCHANGE = 1024  # twice as many are in memory

_DEFAULTS: PlacementOptions = {
    "plan": "auto",
    "memory_budget": None,
    "hotness": "out_degree",
    "structure_hotness": None,
    "graph_ratio": None,
    "feature_ratio": None,
    "first": None,
    "topology": None,
    "spill": None,
    "host_budget": None,
    "machines": "replicate",
    "hot_ratio": None,
    "batches_per_exchange": None,
    "storage": None,
}


def complete_options(options: PlacementOptions) -> PlacementOptions:
    """Checks the options, and returns them with a value for each field.

    Raises:
        TypeError: a keyword is not an option of placement, or a number is none.
        ValueError: the value of an option is not valid, or `hot_ratio` or `batches_per_exchange` is
            given together with ``machines="replicate"``.
    """
    for name in options:
        if name not in _DEFAULTS:
            raise TypeError(
                f"got an unexpected keyword argument {name!r}; the options of placement are "
                + ", ".join(_DEFAULTS)
            )
    complete: PlacementOptions = {**_DEFAULTS, **options}
    check_number("memory_budget", complete["memory_budget"], 0)
    shard_ratios(complete)
    disk_spill(complete)
    _check_machines(complete["machines"])
    hot_ratio(complete)
    batches_per_exchange(complete)
    checked_storage(complete["storage"])
    return complete


def shard_ratios(options: PlacementOptions) -> ShardRatios:
    """Returns the ratios of complete options."""
    return ShardRatios(options["graph_ratio"], options["feature_ratio"], options["first"])


def disk_spill(options: PlacementOptions) -> Spill:
    """Returns the spill of complete options."""
    return Spill(options["spill"], options["host_budget"])


def hot_ratio(options: PlacementOptions) -> float:
    """Returns the share of each node table's rows that every machine has, of complete options."""
    ratio = options["hot_ratio"]
    if ratio is None:
        return DEFAULT_HOT_RATIO if options["machines"] == "shard" else 1.0
    if options["machines"] == "replicate":
        raise ValueError('hot_ratio is for machines="shard": machines="replicate" has all rows')
    is_number = isinstance(ratio, (int, float)) and not isinstance(ratio, bool)
    if not is_number or not 0 <= ratio <= 1:
        raise ValueError(f"hot_ratio must be a number from 0 to 1, got {ratio!r}")
    return float(ratio)


def batches_per_exchange(options: PlacementOptions) -> int:
    """Returns the number of batches whose rows are exchanged together, of complete options."""
    count = options["batches_per_exchange"]
    if count is None:
        return 1
    if options["machines"] == "replicate":
        raise ValueError(
            'batches_per_exchange is for machines="shard": with machines="replicate" no rows are '
            "exchanged"
        )
    check_number("batches_per_exchange", count, 1, MAX_BATCHES_PER_EXCHANGE)
    return count


def _check_machines(machines: object) -> None:
    if machines not in MACHINE_PLANS:
        raise ValueError(f"machines must be one of {MACHINE_PLANS}, got {machines!r}")
