"""`peergraph run script.py`: runs a script like Python, with the adapters' help for imports."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

STARTUP = Path(__file__).parent / "startup"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.usage = "peergraph run [-m] SCRIPT [ARGUMENTS ...]"
    parser.add_argument("-m", action="store_true", dest="is_module", help="SCRIPT names a module")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file, or a module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="are the script's own")


def run(args: argparse.Namespace) -> int:
    """Runs the script in this process. Returns the script's exit status, 2 if there is no script.

    If DGL is installed, `peergraph_dgl` is imported first. Processes that the script starts
    (`mp.spawn`, torchrun, DataLoader workers) do the same when they import DGL.
    """
    if not args.is_module and not Path(args.script).exists():
        print(f"peergraph run: there is no file {args.script!r}", file=sys.stderr)
        return 2
    if find_spec("dgl") is not None:
        _help_children()
        import_module("peergraph_dgl")
    sys.argv = [args.script, *args.arguments]
    if args.is_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(args.script, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(args.script).resolve().parent))
        runpy.run_path(args.script, run_name="__main__")
    return 0


def _help_children() -> None:
    """Makes every Python process that this process starts read `startup/sitecustomize.py`."""
    paths = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *([paths] if paths else [])])
