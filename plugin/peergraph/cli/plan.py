"""`peergraph plan`: where a graph would be placed, and the predicted cost of reads or training."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from peergraph.cli._plan_full_graph import described_facts, ranks_of_machines, saved_facts
from peergraph.cli._plan_graph import described_graph, saved_graph
from peergraph.cli._plan_machines import Network, PlanOfMachines
from peergraph.cli._plan_picture import draw
from peergraph.cli.arguments import byte_count, integers, storage, storage_option
from peergraph.fullgraph import FullGraphPlan
from peergraph.fullgraph.exchange.mode_cost import MODES, STAGED_MODES
from peergraph.fullgraph.layout.duplication import Duplication
from peergraph.fullgraph.layout.numbering import ORDERS
from peergraph.fullgraph.plan.counted_spread import (
    format_duplication,
    spread_given,
    spread_of,
)
from peergraph.fullgraph.plan.schedule.make_schedule import LAYER_TYPES
from peergraph.memory import Group
from peergraph.memory.topology.machines import MACHINES, machine
from peergraph.memory.topology.measure import known_topology, measure_topology
from peergraph.memory.topology.topology import Topology
from peergraph.store.placement.options import DEFAULT_HOT_RATIO, MACHINE_PLANS
from peergraph.store.placement.plan import Item, Plan
from peergraph.store.placement.policies import POLICIES, plan_on
from peergraph.store.placement.ratios import ShardRatios
from peergraph.store.placement.reads import BatchReads

_DEFAULT_BUDGET_SHARE = 0.6
_HIDDEN_BYTES = {"float32": None, "bfloat16": 2, "float16": 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_graph(parser.add_argument_group("graph").add_argument)
    _add_machine(parser.add_argument_group("machine").add_argument)
    _add_machines(parser.add_argument_group("several machines").add_argument)
    _add_placement(parser.add_argument_group("plan").add_argument)
    _add_full_graph(parser.add_argument_group("full-graph training").add_argument)
    _add_output(parser.add_argument_group("output").add_argument)


def _add_graph(add: Callable[..., object]) -> None:
    add("--store", metavar="FOLDER", help="a saved store; else the graph is described by sizes")
    add("--nodes", type=count, default=2_449_029, metavar="N", help="default: ogbn-products'")
    add("--edges", type=count, default=123_718_280, metavar="N")
    add("--row-bytes", type=integers, default=(400,), metavar="N,...", help="of node tables (400)")
    add(
        "--storage",
        type=storage,
        action="append",
        default=[],
        metavar="[TYPE.]TABLE=STORAGE",
        help="narrow rows, such as x=int8 (x, x1, ... are the described tables); may be repeated",
    )
    add("--skew", type=float, default=0.8, help="reads fall as this power of the rank (0.8)")


def _add_machine(add: Callable[..., object]) -> None:
    add(
        "--topology",
        metavar="NAME",
        help=f"a JSON file, or one of {', '.join(MACHINES)}; default: this machine as it was "
        "measured",
    )
    add(
        "--measure",
        action="store_true",
        help="measure this machine first; with several GPUs, under torchrun -m peergraph.cli plan",
    )
    add("--gpus", type=integers, metavar="N,...", help="only these")
    add("--mask", type=pairs, default=(), metavar="A-B,...", help="links that are not to be used")


def _add_machines(add: Callable[..., object]) -> None:
    add("--machines", type=int, metavar="N", help="the number of such machines")
    add("--network", type=byte_count, metavar="SIZE", help="bytes a second of each, such as 50G")
    add("--parameters", type=count, default=1_000_000, metavar="N", help="of the model (1e6)")
    add(
        "--machine-plan",
        choices=MACHINE_PLANS,
        default="auto",
        help="a store on each machine, or rows split over them (auto: replicate what fits)",
    )
    add(
        "--hot-ratio",
        type=float,
        default=DEFAULT_HOT_RATIO,
        metavar="R",
        help="share of the rows of node tables that each machine has where rows are split "
        f"({DEFAULT_HOT_RATIO:g})",
    )
    add(
        "--batches-per-exchange",
        type=int,
        default=1,
        metavar="N",
        help="mini-batches of each GPU whose rows are exchanged together where rows are split (1)",
    )
    add(
        "--compute",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="of a step besides reading the graph: the model's passes (0)",
    )


def _add_placement(add: Callable[..., object]) -> None:
    add("--policy", choices=POLICIES, default="auto")
    add(
        "--budget",
        "--memory-budget",
        type=byte_count,
        metavar="SIZE",
        help="of each GPU, default 60 %% of its memory (all of it for --full-graph)",
    )
    add("--graph-ratio", type=float, metavar="R", help="share of the structure on GPUs")
    add("--feature-ratio", type=float, metavar="R", help="share of the tables on GPUs")
    add("--first", choices=("structure", "features"), help="gets memory before the other")


def _add_full_graph(add: Callable[..., object]) -> None:
    add(
        "--full-graph",
        action="store_true",
        help="plan training on the whole graph at once instead of mini-batches",
    )
    add(
        "--widths",
        type=integers,
        metavar="N,...",
        help="columns of the input and of each layer's output, such as 100,512,47",
    )
    add(
        "--offload",
        choices=("auto", "yes", "no"),
        default="auto",
        help="keep rows in host memory (auto: where the budget does not suffice)",
    )
    add("--num-chunks", type=int, metavar="N", help="of each GPU (default: the fastest)")
    add("--host-memory", type=byte_count, metavar="SIZE", help="for rows (the topology's)")
    add("--file-memory", type=byte_count, default=0, metavar="SIZE", help="for rows (0)")
    add(
        "--hidden-dtype",
        choices=list(_HIDDEN_BYTES),
        default="float32",
        help="in which offloaded training stores rows of layers and gradients",
    )
    add("--heads", type=int, default=0, help="of attention, for offloaded training (0: sums)")
    add(
        "--layer-type",
        choices=LAYER_TYPES,
        default="gcn",
        help="of layers that sum, for offloaded training: what they need besides sums (gcn)",
    )
    add(
        "--duplication",
        type=_parse_duplication,
        default=(),
        metavar="CHUNKS:NEEDED:LOADED,...",
        help="rows for each node that so many chunks of each GPU need, and that are loaded of them",
    )
    add(
        "--labelled",
        type=share,
        metavar="SHARE",
        help="share of nodes that the loss is computed from, for offloaded training (at most all)",
    )
    add("--order", choices=ORDERS, default="auto", help="of a saved store's nodes (auto)")
    add("--mode", choices=MODES, help="how rows are exchanged (default: the fastest)")


def _add_output(add: Callable[..., object]) -> None:
    add("--json", action="store_true", help="print one JSON object")
    add("--picture", metavar="FILE", help="draw it, as PNG or SVG")


def run(args: argparse.Namespace) -> int:
    """Prints and draws the plan. Returns the exit status: 2 for impossible arguments."""
    try:
        topology = _topology(args)
        if topology is None:  # another rank prints
            return 0
        network = _network(args)
        if args.full_graph:
            return _plan_full_graph(args, topology)
        plan, reads, machines = _plan(args, topology, network)
        if args.picture is not None:
            draw(args.picture, plan, topology)
    except (ImportError, OSError, ValueError, NotImplementedError) as error:
        print(f"peergraph plan: {error}", file=sys.stderr)
        return 2
    if args.json:
        facts = {"topology": json.loads(topology.to_json()), "plan": plan.to_dict()}
        if machines is not None:
            facts["network"] = machines.to_dict()
        print(json.dumps(facts))
    else:
        print(topology, plan.partitions, plan, _assumed(reads, args), sep="\n")
        if machines is not None:
            print(machines)
    return 0


def _parse_duplication(text: str) -> list[tuple[int, float, float]]:
    """Parses chunk counts with their duplication, as in ``32:7.87:3.82,64:...``."""
    found = []
    for word in text.split(","):
        try:
            chunks, needed, loaded = word.split(":")
            given = int(chunks), float(needed), float(loaded)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"expected CHUNKS:NEEDED:LOADED, got {word!r}"
            ) from None
        if given[0] < 1 or not 1 <= given[2] <= given[1]:
            raise argparse.ArgumentTypeError(f"expected 1 <= LOADED <= NEEDED, got {word!r}")
        found.append(given)
    return found


def _plan_full_graph(args: argparse.Namespace, topology: Topology) -> int:
    """Prints the plan of training on the whole graph."""
    if args.picture is not None:
        raise ValueError("--picture is for plans of mini-batches")
    if args.storage:
        raise NotImplementedError(
            "--storage is for plans of mini-batches: --full-graph counts rows as layers see them"
        )
    machines = args.machines or 1
    if machines > 1:
        topology = topology.on_machines(ranks_of_machines(machines * topology.num_gpus, machines))
    ranks, counted = topology.num_gpus, list[Duplication]()
    if args.store is not None:
        facts, counted = saved_facts(args.store, ranks, args.order, machines)
    else:
        row_bytes = sum(args.row_bytes)
        facts = described_facts(args.nodes, args.edges, row_bytes, args.skew, ranks, machines)
    edges = sum(sum(v.num_edges) for v in facts.volumes.values())
    plan = FullGraphPlan.make(
        facts,
        topology,
        widths=args.widths,
        memory_budget=args.budget or min(topology.memory),
        mode=args.mode,
        modes=MODES if machines == 1 else STAGED_MODES,
        network=args.network,
        offload={"auto": None, "yes": True, "no": False}[args.offload],
        num_chunks=args.num_chunks,
        host_memory=(args.host_memory or topology.host_memory) * machines or None,
        file_memory=args.file_memory,
        heads=args.heads,
        layer_type=args.layer_type,
        hidden_bytes=_HIDDEN_BYTES[args.hidden_dtype],
        labelled=args.labelled,
        spreads=[
            *(spread_of(found, edges / max(1, sum(facts.rows)), facts) for found in counted),
            *(spread_given(given, ranks, facts) for given in args.duplication),
        ],
    )
    if args.json:
        print(json.dumps({**plan.to_dict(), "duplication": [vars(found) for found in counted]}))
    else:
        print(plan, *format_duplication(counted), sep="\n")
    return 0


def _assumed(reads: BatchReads, args: argparse.Namespace) -> str:
    """Describes the assumptions of the predictions that were not measured."""
    rows = sum(count for _, count in reads.nodes.values())
    lists = sum(count for _, count in reads.expanded.values())
    neighbours = sum(reads.edges.values())
    hot = "nodes of high out-degree" if args.store else f"few nodes (rank ^ -{args.skew:g})"
    return (
        f"  assumed: {rows:,.0f} nodes, {lists:,.0f} lists and {neighbours:,.0f} neighbours a "
        f"mini-batch, mostly of {hot};\n  Store.build plans by what presample has counted"
    )


def _network(args: argparse.Namespace) -> Network | None:
    if args.machines is not None:
        return Network.of(args.machines, args.network, args.parameters, args.compute)
    if args.network is not None:
        raise ValueError("--network is for --machines")
    return None


def _plan(
    args: argparse.Namespace, topology: Topology, network: Network | None
) -> tuple[Plan, BatchReads, PlanOfMachines | None]:
    """Returns the plan of each machine, the reads of the whole graph, and the traffic of several
    machines (None for one machine).
    """
    stored = storage_option(args.storage)
    if args.store is not None:
        items, reads = saved_graph(args.store, stored)
    else:
        items, reads = described_graph(args.nodes, args.edges, args.row_bytes, args.skew, stored)
    budget = args.budget
    if budget is None:
        budget = int(_DEFAULT_BUDGET_SHARE * min(topology.memory))
    ratios = ShardRatios(args.graph_ratio, args.feature_ratio, args.first)

    def plan_items(some: Sequence[Item], read: BatchReads) -> Plan:
        return plan_on(topology, some, read, budget, args.policy, ratios)

    if network is None:
        return plan_items(items, reads), reads, None
    machines = PlanOfMachines.make(
        args.machine_plan,
        items,
        reads,
        topology,
        network,
        args.hot_ratio,
        args.batches_per_exchange,
        plan_items,
    )
    return machines.plan, reads, machines


def _topology(args: argparse.Namespace) -> Topology | None:
    """Returns the topology that the arguments name; None on ranks that need not print."""
    if args.topology is not None and args.measure:
        raise ValueError("--measure is for this machine, --topology for another")
    if args.measure:
        group = Group.current()
        found: Topology | None = measure_topology(group, force=True)
        if group.rank:
            return None
    elif args.topology is None:
        found = known_topology()
        if found is None:
            raise ValueError(
                "this machine has not been measured: add --measure, with a rank on each GPU "
                "(torchrun --nproc-per-node), or --topology"
            )
    elif Path(args.topology).is_file():
        try:
            found = Topology.from_json(Path(args.topology).read_text())
        except ValueError as error:
            raise ValueError(f"{args.topology}: {error}") from error
    else:
        found = machine(args.topology)
    assert found is not None
    # Links are named by the numbers of the whole machine.
    masked = found.masked(args.mask)
    return masked if args.gpus is None else masked.subset(args.gpus)


def share(text: str) -> float:
    """Parses a share of all, as in ``0.011``."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"expected a share in (0, 1], got {text}")
    return number


_MOST = 10**15
"""Of nodes, edges, parameters."""


def count(text: str) -> int:
    """Parses a count, as in ``111e6`` or ``111000000``."""
    try:
        number = float(text)
        whole = int(text) if text.isdecimal() else int(number)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None
    if whole != number or not 0 <= whole <= _MOST:
        raise argparse.ArgumentTypeError(f"expected a whole number, 0 to {_MOST:g}, got {text}")
    return whole


def pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Parses links, as in ``0-1,2-3``."""
    try:
        split = [part.split("-") for part in text.split(",")]
        return tuple((int(a), int(b)) for a, b in split)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected links like 0-1,2-3, got {text!r}") from None
