"""`peergraph info`: versions and what was compiled."""

from __future__ import annotations

import argparse
import json

import peergraph
from peergraph import _C


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    facts = {"peergraph": peergraph.__version__, "cuda": _C.has_cuda, "compiler": _C.compiler}
    if args.json:
        print(json.dumps(facts))
    else:
        for name, value in facts.items():
            print(f"{name:12} {value}")
    return 0
