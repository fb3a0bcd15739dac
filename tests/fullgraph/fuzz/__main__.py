"""Runs random programs on plain tensors and on full graphs, and compares.

    python -m tests.fullgraph.fuzz --seed 0 --programs 20000 --ranks 1,3 --chunks 0,1,3,5
    python -m tests.fullgraph.fuzz --device cuda --ranks 1,2,4 --jobs 16 --minutes 8

Prints how many programs end with equal values, with an error that names a way out, and with
anything else; the latter as short scripts, in `--out` too. Exit status 1 if there are any.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.fullgraph.fuzz.campaign import Report
from tests.fullgraph.fuzz.jobs import run_job


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fullgraph.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--programs", type=int, default=1000, help="in all (default: %(default)s)")
    parser.add_argument("--ranks", default="1,3", help="numbers of ranks (default: %(default)s)")
    parser.add_argument(
        "--chunks", default="0,0,1,3,5", help="0: not offloaded (default: %(default)s)"
    )
    parser.add_argument("--loaders", type=float, default=0.1, help="share of programs of loaders")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="programs that run at a time")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no program after these")
    parser.add_argument("--deadline", type=float, default=60, help="seconds for a program")
    parser.add_argument("--out", type=Path, help="a folder for the scripts of findings")
    options = parser.parse_args()
    if options.jobs == 1:
        report = run_job(options, 0)
    else:
        report = Report()
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.jobs, context) as pool:
            for part in pool.map(run_job, [options] * options.jobs, range(options.jobs)):
                report.add(part)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        for i, finding in enumerate(report.findings):
            (options.out / f"{i:03}_seed_{finding.seed}.py").write_text(str(finding))
    print(report)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
