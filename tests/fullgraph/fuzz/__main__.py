"""Runs random programs on plain tensors and on full graphs, and compares.

    python -m tests.fullgraph.fuzz --seed 0 --programs 20000 --ranks 1,3 --chunks 0,1,3,5
    python -m tests.fullgraph.fuzz --device cuda --ranks 1,2 --jobs 12 --minutes 8 --programs 99999

Prints how many programs end with equal values, with an error that names a way out (by its first
words), and with anything else; the latter at once, as short scripts, in `--out` too. Ctrl-C, a
SIGTERM and `--minutes` end it with the counts so far. Exit status 1 if there are findings.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.fullgraph.fuzz.jobs import results
from tests.fullgraph.fuzz.report import Report


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fullgraph.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--programs", type=int, default=1000, help="in all (default: %(default)s)")
    for name, kind, default in (
        ("ranks", int, "1,3"),
        ("chunks", int, "0,0,1,3,5"),  # 0: not offloaded
        ("graphs", str, "pyg,pyg,pyg,pyg,typed,dgl"),
        ("dtypes", str, "float64,float64,float64,float32"),
    ):
        parser.add_argument(
            f"--{name}",
            type=partial(_list, kind),
            default=default,
            help="that each program draws one of (default: %(default)s)",
        )
    parser.add_argument("--loaders", type=float, default=0.1, help="share of programs of loaders")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="programs that run at a time")
    parser.add_argument("--minutes", type=float, default=1e6, help="end after these")
    parser.add_argument("--deadline", type=float, default=60, help="seconds for a program")
    parser.add_argument("--out", type=Path, help="a folder for the scripts of findings")
    options = parser.parse_args()
    if "dgl" in options.graphs and importlib.util.find_spec("dgl") is None:
        options.graphs = [graph for graph in options.graphs if graph != "dgl"]
        if not options.graphs:
            parser.error("DGL is not installed")
        print("skipped: graphs of DGL, which is not installed", flush=True)
    if options.device == "cuda":
        import torch

        count = torch.cuda.device_count()
        if max(options.ranks) > count:  # NCCL takes no GPU twice
            parser.error(f"--ranks: {max(options.ranks)} ranks, and {count} GPUs")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    report = Report(options.out, partial(print, flush=True))
    with suppress(KeyboardInterrupt), closing(results(options)) as endings:
        shown = time.monotonic()
        for result in endings:
            if result is not None:
                report.add(result)
            if time.monotonic() - shown > 60:
                print(report.summary, flush=True)
                shown = time.monotonic()
    print(report, flush=True)
    return 1 if report.failures else 0


def _list(kind: Callable[[str], Any], text: str) -> list[Any]:
    return [kind(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
