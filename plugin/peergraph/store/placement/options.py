"""The options of placement: what users may say about the memory that a graph is stored in."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

from torch import Tensor
from typing_extensions import TypedDict

from peergraph.memory.topology.topology import Topology
from peergraph.store.hotness.hotness import HotnessSpec
from peergraph.store.input.source import EdgeType
from peergraph.store.input.storage import StorageOption, checked_storage
from peergraph.store.placement.plan import Plan
from peergraph.store.placement.ratios import ShardRatios
from peergraph.store.placement.spill import Spill


class PlacementOptions(TypedDict, total=False):
    """Keyword arguments of :meth:`Store.build`, :meth:`Store.load` and the adapters' ``share``.

    All of them may be left out.

    Args:
        plan: ``"auto"`` (the default), ``"replicated"``, ``"sharded"``, ``"host"``, ``"solver"``,
            or a :class:`Plan`. ``"auto"`` minimises the time of reads by the machine's links, where
            :func:`peergraph.memory.measure_topology` has measured them; else it replicates what
            fits the budget, then shards, then leaves on the host, structure before features
            (XGNN 4.3). Without a GPU, one copy in the machine's memory serves all ranks.
            ``"solver"`` is ``"auto"`` by links without replication: XGNN's own placement.
        memory_budget: bytes that each rank may take of its GPU, id maps included; default for
            plans by cost: 60 % of the free bytes. Other plans raise if they need more.
        hotness: how often nodes are read; the nodes that are read most get the fastest memory
            where rows are split over shards or tiers. ``"out_degree"`` (the default: how often a
            node is an in-neighbour), ``"in_degree"``, the counts of
            :func:`peergraph.sampling.presample`, or values ``[num_nodes]`` (by node type). Rank
            0's values count.
        structure_hotness: the same for lists of in-neighbours, or values ``[destinations]`` by
            edge type; of counts, the reads of lists count. Default: one order of the nodes serves
            structure and features. A separate order, by reads per byte, costs a map of 4 bytes a
            destination in each rank's memory and a look-up for each list, and only where the plan
            splits the structure.
        graph_ratio: XGNN's API, with ``"auto"``: the share (0..1) of the bytes of the structure
            that is sharded over the GPUs, hottest first; the rest goes to the host. Items without
            a ratio are placed in the memory that is left.
        feature_ratio: the same for the bytes of node and edge tables.
        first: with ``"auto"``, ``"structure"`` or ``"features"``: gets memory before the other.
        topology: links to plan by in the place of the measured ones, one GPU for each rank; links
            that are masked in it are not read.
        spill: folder for rows that the host's memory does not hold: the coldest rows of the widest
            tables, and without a GPU at last of the structure; see docs/disk.md.
        host_budget: bytes that the store may take of the host's memory; default: the free bytes.
        machines: ``"replicate"`` (the default): each machine has a store of the whole graph, and
            reads nothing from other machines (WholeGraph III-D). Each machine brings the graph, or
            one sends it to those that do not. ``"shard"``: each machine has the structure, the
            tables with at most 16 bytes a row, the hottest rows of the others, and its share of the
            rest; loaders exchange rows batch by batch, on all ranks together. ``"auto"``
            replicates what fits the memory of each machine, and else shards; ``print(store.plan)``
            says why. Rows on disk (`spill`) do not count as fitting.
        hot_ratio: where rows are split over machines: the share (0..1) of the rows of each node
            table, hottest first, that every machine has; default 0.25. Equal on all machines.
        storage: how tables of float32, float64, float16 or bfloat16 are stored: ``"float16"``,
            ``"bfloat16"``, ``"float8_e4m3"``, ``"float8_e5m2"``, ``"int8"`` (with a scale for each
            row) or ``"int8:N"`` (for each N columns of a row), by name of node and edge tables
            (``{"x": "bfloat16"}``), or by type and name (``{"paper": {"x": "int8"}}``). Reads
            return the data's dtype; see docs/narrow_storage.md. Equal on all machines.
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
    storage: StorageOption | None


MACHINE_PLANS = ("replicate", "shard", "auto")

# The hottest quarter of the nodes gets most reads of a graph with a power law.
DEFAULT_HOT_RATIO = 0.25

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
    "storage": None,
}


def complete_options(options: PlacementOptions) -> PlacementOptions:
    """The options with a value for each field.

    Raises:
        TypeError: a keyword that is no option of placement.
        ValueError: a ratio, `first`, `spill`, `host_budget` or `machines` that is out of range, or
            `hot_ratio` with ``machines="replicate"``; an unknown storage.
    """
    for name in options:
        if name not in _DEFAULTS:
            raise TypeError(
                f"got an unexpected keyword argument {name!r}; the options of placement are "
                + ", ".join(_DEFAULTS)
            )
    complete: PlacementOptions = {**_DEFAULTS, **options}
    shard_ratios(complete)
    disk_spill(complete)
    _check_machines(complete["machines"])
    hot_ratio(complete)
    checked_storage(complete["storage"])
    return complete


def shard_ratios(options: PlacementOptions) -> ShardRatios:
    """The ratios of complete options."""
    return ShardRatios(options["graph_ratio"], options["feature_ratio"], options["first"])


def disk_spill(options: PlacementOptions) -> Spill:
    """The spill of complete options."""
    return Spill(options["spill"], options["host_budget"])


def hot_ratio(options: PlacementOptions) -> float:
    """The share of the rows of each node table that every machine has, of complete options."""
    given = options["hot_ratio"]
    if given is None:
        return DEFAULT_HOT_RATIO if options["machines"] == "shard" else 1.0
    if options["machines"] == "replicate":
        raise ValueError('hot_ratio is for machines="shard": machines="replicate" has all rows')
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not 0 <= given <= 1:
        raise ValueError(f"hot_ratio must be a number from 0 to 1, got {given!r}")
    return float(given)


def _check_machines(given: object) -> None:
    if given not in MACHINE_PLANS:
        raise ValueError(f"machines must be one of {MACHINE_PLANS}, got {given!r}")
