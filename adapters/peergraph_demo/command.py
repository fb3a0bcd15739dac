"""`peergraph demo`: trains GraphSAGE on several ranks from one shared store."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields

from peergraph.cli import byte_count, integers
from peergraph_demo.options import PLANS, DemoOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options; defaults are those of `DemoOptions`."""
    default = DemoOptions()
    add = parser.add_argument
    add(
        "--data",
        default=default.data,
        metavar="GRAPH",
        help="'code': the code of this Python installation (default); 'products': synthetic, "
        "of the size of ogbn-products; or a .npz file",
    )
    add("--scale", type=float, default=default.scale, help="shrinks 'products' (default 1)")
    add("--rebuild", action="store_true", help="build the code graph anew")
    add("--device", choices=("cpu", "cuda"), help="default: cuda where there is a GPU")
    add("--ranks", type=int, metavar="N", help="default: all GPUs, or 2 on the CPU")
    add("--plan", choices=PLANS, default=default.plan, help="where the graph lies (default auto)")
    add(
        "--memory-budget",
        type=byte_count,
        metavar="SIZE",
        help="GPU memory a rank may use for the graph with --plan auto, for example 10G",
    )
    add(
        "--full-graph",
        action="store_true",
        help="train on the whole graph in every step, partitioned over the ranks, without sampling",
    )
    add(
        "--epochs",
        type=int,
        metavar="N",
        help="default 3, more for small graphs; 100 with --full-graph",
    )
    add(
        "--batch-size", type=int, metavar="N", help="per rank (default 1024, less for small graphs)"
    )
    add("--fanouts", type=integers, default=default.fanouts, metavar="N,N,...")
    add("--hidden", type=int, default=default.hidden, metavar="N")
    add("--lr", type=float, default=default.lr)
    add("--dropout", type=float, default=default.dropout)
    add("--seed", type=int, default=default.seed)
    add("--num-workers", type=int, default=default.num_workers, metavar="N", help="per rank")
    add("--measure", action="store_true", help="count reads by tier; slows the demo")
    add("--json", metavar="FILE", help="write the result there, too")


def run(args: argparse.Namespace) -> int:
    """Runs the demo; 2 for options that cannot be, 1 if a rank failed, 130 after Ctrl-C."""
    try:
        import torch_geometric  # noqa: F401
    except ImportError:
        print(
            "peergraph demo needs PyG: pip install 'peergraph[pyg]' (or torch-geometric)",
            file=sys.stderr,
        )
        return 2
    options = DemoOptions(**{f.name: getattr(args, f.name) for f in fields(DemoOptions)})
    try:
        return _run(options)
    except KeyboardInterrupt:
        print("peergraph demo: interrupted", file=sys.stderr)
        return 130


def _run(options: DemoOptions) -> int:
    from torch.multiprocessing.spawn import ProcessException

    from peergraph_demo.launch import prepare_demo, run_demo

    try:
        device, ranks = prepare_demo(options)
    except (ValueError, OSError) as error:
        print(f"peergraph demo: {error}", file=sys.stderr)
        return 2
    try:
        run_demo(options, device, ranks)
    except ProcessException as error:
        print(f"peergraph demo: {error}", file=sys.stderr)
        return 1
    return 0
