"""Entry point of `peergraph` and `python -m peergraph.cli`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import peergraph

# The module of each command, which has add_arguments(parser) and run(args) -> exit status, and the
# help text.
COMMANDS = {
    "demo": (
        "peergraph_demo.command",
        "train GraphSAGE for node classification on several ranks from one shared store",
    ),
    "info": (
        "peergraph.cli.info",
        "what is installed, compiled and connected here, and what to do about what is missing; or "
        "what a saved store holds",
    ),
    "ingest": (
        "peergraph.cli.ingest",
        "make a store's folder from Parquet or CSV files, or datasets of OGB, DGL or PyG",
    ),
    "monitor": (
        "peergraph.cli.monitor",
        "run a Python script and show what it reads from where, and what it waits for",
    ),
    "plan": (
        "peergraph.cli.plan",
        "where a graph would lie on this machine or another, and what reading it would cost",
    ),
    "run": (
        "peergraph.cli.run",
        "run a Python script in which `import dgl` works with the installed torch",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; only its module is imported, so `info` does not wait for the others."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="peergraph", description=peergraph.__doc__)
    parser.add_argument("--version", action="version", version=peergraph.__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module_name, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name in argv[:1]:
            module = import_module(module_name)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    args = parser.parse_args(argv)
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
