"""Runs the benchmarks on CPU ranks, at sizes that say nothing about speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.scripts import Finished, run_python

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = ["--device", "cpu", "--iterations", "3", "--warmup", "1", "--budget", "0.1"]


def run_script(bench: str, *arguments: str | Path) -> Finished:
    """Runs a benchmark, which must not fail; a text of options may have several."""
    words: list[str] = []
    for argument in map(str, arguments):
        words += argument.split() if argument.startswith("-") else [argument]
    done = run_python(BENCHMARKS / f"{bench}.py", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def read(out: Path) -> list[dict[str, Any]]:
    """The records of a file."""
    return [json.loads(line) for line in out.read_text().splitlines()]


def run(bench: str, out: Path, *arguments: str | Path) -> tuple[list[dict[str, Any]], str]:
    """The records that a benchmark of ranks wrote, and what it printed."""
    done = run_script(bench, *SMALL, *arguments, "--out", out)
    return read(out), done.stdout
