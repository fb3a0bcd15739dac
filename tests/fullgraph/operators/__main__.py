"""Compares all operators: ``python -m tests.fullgraph.operators --samples 12 --ranks 3``."""

from __future__ import annotations

import argparse

import torch

from peergraph.testing import run_ranks
from tests.fullgraph.operators.calls import Extent
from tests.fullgraph.operators.compare import compare


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument(
        "--chunks", type=int, help="of offloaded rows; without it rows are resident"
    )
    parser.add_argument("--samples", type=int, default=12, help="of each operator")
    parser.add_argument("--seed", type=int, default=1, help="of the numbers in the samples")
    parser.add_argument("--part", type=int, nargs=2, default=[0, 1], metavar=("I", "N"))
    parser.add_argument("--dtypes", nargs="+", default=["float64", "int64", "bool"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--rows",
        choices=["nodes", "ids", "mask", "range", "columns"],
        default="nodes",
        help="of a graph, that tensors become: all, or selected ones (default: %(default)s)",
    )
    parser.add_argument("--full", action="store_true", help="all forms of calls and tensors")
    parser.add_argument("--only", default="", help="operators whose name has this part")
    options = parser.parse_args()
    dtypes = [getattr(torch, name) for name in options.dtypes]
    extent = Extent(options.samples, options.full, options.seed)
    arguments = *options.part, extent, options.chunks, dtypes, options.device
    arguments += options.rows, True, options.only
    results = run_ranks(
        compare, options.ranks, *arguments, timeout_s=24 * 3600, device=options.device
    )
    ends, faults = results[0]
    print(", ".join(f"{count} {end}" for end, count in sorted(ends.items())))
    return bool(faults)


if __name__ == "__main__":
    raise SystemExit(main())
