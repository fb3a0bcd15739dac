"""`peergraph plan`: where a graph would be placed, and the predicted cost of reads or training."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from peergraph.cli._plan_full_graph import described_facts, saved_facts
from peergraph.cli._plan_graph import described_graph, saved_graph
from peergraph.cli._plan_picture import draw
from peergraph.cli.arguments import byte_count, integers, storage, storage_option
from peergraph.fullgraph import FullGraphPlan, PlanLimits, RecordedModel, named_model
from peergraph.fullgraph.dry_run.named_models import LAYER_TYPES, assumed_model
from peergraph.fullgraph.exchange.mode_cost import MODES
from peergraph.fullgraph.layout.duplication import Duplication
from peergraph.fullgraph.layout.numbering import ORDERS
from peergraph.fullgraph.plan.spread import spread_of
from peergraph.memory import Group
from peergraph.memory.topology.measure import known_topology, measure_topology
from peergraph.memory.topology.topology import Topology
from peergraph.number_arguments import check_number
from peergraph.store.placement.plan import Plan
from peergraph.store.placement.policies import POLICIES, plan_on
from peergraph.store.placement.ratios import ShardRatios
from peergraph.store.placement.reads import BatchReads

_DEFAULT_BUDGET_SHARE = 0.6
_PRINTED_CHUNKS = (16, 64, 256)
MAX_GPUS = 64
"""That can be planned for."""
_HIDDEN_BYTES = {"float32": None, "bfloat16": 2, "float16": 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_graph(parser.add_argument_group("graph").add_argument)
    _add_machine(parser.add_argument_group("machine").add_argument)
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
        metavar="FILE",
        help="the links of another machine, as JSON; default: this machine, as it was measured, "
        "else default figures",
    )
    add(
        "--measure",
        action="store_true",
        help="measure this machine first; with several GPUs, under torchrun -m peergraph.cli plan",
    )
    add(
        "--gpus",
        type=integers,
        metavar="N,...",
        help="only these; on a machine that was not measured they need not be there",
    )
    add("--mask", type=pairs, default=(), metavar="A-B,...", help="links that are not to be used")


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
        help="columns of the input and of each layer's output, such as 100,512,47; default: "
        "three layers of 256",
    )
    add(
        "--offload",
        choices=("auto", "yes", "no"),
        default="auto",
        help="keep rows in host memory (auto: where the budget does not suffice)",
    )
    add("--num-chunks", type=int, metavar="N", help="of each GPU (default: fewest bytes)")
    add("--host-memory", type=byte_count, metavar="SIZE", help="for rows (the topology's)")
    add("--file-memory", type=byte_count, default=0, metavar="SIZE", help="for rows (0)")
    add(
        "--hidden-dtype",
        choices=list(_HIDDEN_BYTES),
        default="float32",
        help="in which offloaded training stores rows of layers and gradients",
    )
    add("--layer-type", choices=LAYER_TYPES, default="gcn", help="with --widths: layers (gcn)")
    add("--heads", type=int, default=1, help="of attention, with --layer-type gat (1)")
    add(
        "--labelled",
        type=share,
        metavar="SHARE",
        help="with --widths: share of nodes that the loss is computed from (at most all)",
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
        if args.full_graph:
            return _plan_full_graph(args, topology)
        plan, reads = _plan(args, topology)
        if args.picture is not None:
            draw(args.picture, plan, topology)
    except (ImportError, OSError, ValueError, NotImplementedError) as error:
        print(f"peergraph plan: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({"topology": json.loads(topology.to_json()), "plan": plan.to_dict()}))
    else:
        print(topology, plan.partitions, plan, _assumed(reads, args), sep="\n")
    return 0


def _plan_full_graph(args: argparse.Namespace, topology: Topology) -> int:
    """Prints the plan of training on the whole graph."""
    if args.picture is not None:
        raise ValueError("--picture is for plans of mini-batches")
    if args.storage:
        raise NotImplementedError(
            "--storage is for plans of mini-batches: --full-graph counts rows as layers see them"
        )
    ranks, counted = topology.num_gpus, list[Duplication]()
    if args.store is not None:
        facts, counted = saved_facts(args.store, ranks, args.order)
    else:
        facts = described_facts(args.nodes, args.edges, sum(args.row_bytes), args.skew, ranks)
    plan = FullGraphPlan.make(
        facts,
        topology,
        PlanLimits(
            memory_budget=args.budget or min(topology.memory),
            mode=args.mode,
            offload={"auto": None, "yes": True, "no": False}[args.offload],
            num_chunks=args.num_chunks,
            host_memory=args.host_memory or topology.host_memory or None,
            file_memory=args.file_memory,
            hidden_bytes=_HIDDEN_BYTES[args.hidden_dtype],
        ),
        model=_model(args),
        assumed=assumed_model,
        spreads=[spread_of(rows, facts) for rows in counted],
    )
    if args.json:
        print(json.dumps({**plan.to_dict(), "duplication": [vars(rows) for rows in counted]}))
    else:
        print(plan, *_format(counted), sep="\n")
    return 0


def _format(counted: list[Duplication]) -> list[str]:
    """Returns a line of text for each of some numbers of chunks."""
    return [
        f"  {rows.world_size} x {rows.num_chunks} chunks need {rows.alpha:.2f} rows for each "
        f"node (counted); {rows.saved_between_ranks:.2f} are passed on by ranks, "
        f"{rows.saved_between_batches:.2f} stay from the batch before"
        for rows in counted
        if rows.num_chunks in _PRINTED_CHUNKS
    ]


def _model(args: argparse.Namespace) -> RecordedModel | None:
    """Returns the model of the arguments, which has run on a small graph; None: not known."""
    if args.widths is None:
        return None
    return named_model(args.widths, args.layer_type, args.heads, args.labelled)


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


def _plan(args: argparse.Namespace, topology: Topology) -> tuple[Plan, BatchReads]:
    """Returns the plan, and the reads of a mini-batch."""
    stored = storage_option(args.storage)
    if args.store is not None:
        items, reads = saved_graph(args.store, stored)
    else:
        items, reads = described_graph(args.nodes, args.edges, args.row_bytes, args.skew, stored)
    budget = args.budget
    if budget is None:
        budget = int(_DEFAULT_BUDGET_SHARE * min(topology.memory))
    ratios = ShardRatios(args.graph_ratio, args.feature_ratio, args.first)
    return plan_on(topology, items, reads, budget, args.policy, ratios), reads


def _topology(args: argparse.Namespace) -> Topology | None:
    """Returns the topology that the arguments name; None on ranks that need not print."""
    if args.topology is not None and args.measure:
        raise ValueError("--measure is for this machine, --topology for another")
    if args.measure:
        group = Group.current()
        topology: Topology | None = measure_topology(group, force=True)
        if group.rank:
            return None
    elif args.topology is None:
        topology = known_topology() or _default_topology(args.gpus)
    else:
        try:
            topology = Topology.from_json(Path(args.topology).read_text())
        except ValueError as error:
            raise ValueError(f"{args.topology}: {error}") from error
    assert topology is not None
    # Links are named by the numbers of the whole machine.
    masked = topology.masked(args.mask)
    return masked if args.gpus is None else masked.subset(args.gpus)


def _default_topology(gpus: Sequence[int] | None) -> Topology:
    """Returns default figures for as many GPUs as are named, else as there are (at least one)."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 1
    if gpus is not None:
        check_number("--gpus", max(gpus), 0, MAX_GPUS - 1)
        count = max(count, 1 + max(gpus))
    return Topology.default(count)


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
