"""`peergraph monitor script.py`: runs an unchanged script, and shows its reads and waits."""

from __future__ import annotations

import argparse
import math

import peergraph
from peergraph.cli import run as run_command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "--every",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="from one line to the next (default: %(default)s)",
    )
    run_command.add_arguments(parser)
    parser.usage = (
        "peergraph monitor [--every SECONDS] [-m] SCRIPT [ARGUMENTS ...]\n"
        "       torchrun [OPTIONS] -m peergraph.cli monitor SCRIPT [ARGUMENTS ...]"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the script in this process, monitored; see :func:`peergraph.monitor`.

    Processes that the script itself starts are not monitored: start the ranks by torchrun, or call
    :func:`peergraph.monitor` in the script.
    """
    with peergraph.monitor(every=args.every):
        return run_command.run(args)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text}")
    return value
