"""Kills, freezes and confuses ranks, fills disks, draws batches; prints what came of it.

    .venv/bin/python -m tests.stress --seed 7
    .venv/bin/python -m tests.stress --device cuda --ranks 2,4

On GPUs all their memory is allocated again after each scenario. Exit status 1 if anything was not
as expected: a survivor that hangs or does not name the rank, wrong values, something left behind.
"""

from __future__ import annotations

import argparse
import sys

from peergraph.testing import preload
from tests.stress.leftovers import Watch, adopt_orphans
from tests.stress.runs import HEADER, run_long, run_scenario
from tests.stress.scenarios import scenarios


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="victims, moments, order, batches")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--ranks", default="2,3", help="numbers of ranks (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=10_000, help="of each rank")
    parser.add_argument("--only", default="", help="scenarios with this in their names")
    options = parser.parse_args()
    worlds = [int(text) for text in options.ranks.split(",")]
    preload("torch._dynamo", "tests.stress.work", "tests.stress.batches")
    adopt_orphans()
    watch = Watch(options.device)
    print(f"seed {options.seed}, {options.device}\n\n{HEADER}", flush=True)
    failed = 0
    for scenario in scenarios(options.seed, worlds, options.device):
        if options.only in str(scenario):
            row = run_scenario(scenario, watch)
            failed += bool(row.wrong)
            print(row, flush=True)
    if options.batches and options.only in f"{options.batches} batches":
        row = run_long(options.batches, worlds[0], options.seed, options.device, watch)
        failed += bool(row.wrong)
        print(row, flush=True)
    print(f"\n{failed} not as expected" if failed else "\nall as expected")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
