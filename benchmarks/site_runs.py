"""Runs what docs/benchmarks/index.md shows, on one commit, in calls of limited time.

    python benchmarks/site_runs.py FOLDER --world 1 --limit 560

A call runs the steps (`page/steps.py`) that the folder lacks on so many GPUs, one after the other,
and starts none that might not end within the limit. Give the same command again, on the same day or
on another, until it says that nothing is missing. Steps that failed are tried again; `--steps`
chooses some. The folder gets `records.jsonl`, `steps.jsonl` and a README; it is of one commit only.
`site_figures.py` draws the page from such folders.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from harness.common import words_of
from harness.markdown import table
from harness.records import append_records, read_records, tables
from page.steps import STEPS, Step

HERE = Path(__file__).parent
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "8",
    # NVLink multicast is of no use here, and on machines shared with others it can do harm.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}


class Run:
    """A folder of records, all of one commit."""

    def __init__(self, folder: Path, commit: str) -> None:
        self.folder, self.commit = folder, commit
        folder.mkdir(parents=True, exist_ok=True)
        self._steps = folder / "steps.jsonl"
        self._records = folder / "records.jsonl"
        self.outcomes = read_records(self._steps) if self._steps.exists() else []
        others = {outcome["commit"] for outcome in self.outcomes} - {commit}
        if others:
            raise SystemExit(f"{folder} has runs of {others.pop()}, this is {commit}")

    def missing(self, world: int) -> list[Step]:
        """The steps that have not passed on so many GPUs."""
        passed = {
            outcome["step"]
            for outcome in self.outcomes
            if outcome["world"] == world and outcome["outcome"] == "passed"
        }
        return [s for s in STEPS if s.name not in passed and world <= s.most_ranks]

    def run(self, step: Step, world: int) -> None:
        """Runs a step; its records count if it passes."""
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            records = Path(scratch) / "records.jsonl"
            outcome = _outcome(step, world, records, self.folder / "log.txt")
            if outcome == "passed":
                rows = [{**row, "step": step.name} for row in read_records(records)]
                append_records(self._records, rows)
        fields = {
            "step": step.name,
            "world": world,
            "commit": self.commit,
            "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU",
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "seconds": round(time.monotonic() - start),
            "outcome": outcome,
            "command": " ".join(step.command(world, "records.jsonl")),
        }
        self.outcomes.append(fields)
        append_records(self._steps, [fields])

    def write_readme(self) -> None:
        """The commands, what became of them, and all tables."""
        kinds = dict.fromkeys(f"{o['world']} x {o['device']}, {o['date']}" for o in self.outcomes)
        rows = [
            (f"`{o['command']}`", o["world"], o["outcome"], o["seconds"]) for o in self.outcomes
        ]
        records = read_records(self._records) if self._records.exists() else []
        versions = sorted({f"torch {record['torch']}" for record in records})
        lines = [
            "# What the benchmarks page shows",
            "",
            f"Commit {self.commit}. {'; '.join([*kinds, *versions])}.",
            "",
            *table(["command", "GPUs", "outcome", "seconds"], rows),
            "```",
            tables(records),
            "```",
            "",
        ]
        (self.folder / "README.md").write_text("\n".join(lines))


def _outcome(step: Step, world: int, records: Path, log: Path) -> str:
    script, *arguments = step.command(world, str(records))
    command = [sys.executable, str(HERE / script), *arguments]
    environment = {**_ENVIRONMENT, **os.environ}
    with log.open("a") as file:
        print(f"== {step.name}, {world}", file=file, flush=True)
        code = subprocess.run(
            ["timeout", "-k", "10", str(step.seconds), *command],
            cwd=HERE.parent,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if code in (124, 137):
        return f"cut off after {step.seconds} s"
    return f"failed: exit {code}" if code else "passed"


def commit_of(repository: Path) -> str:
    """The commit that is checked out, where nothing in the tree differs from it."""
    describe = ["describe", "--always", "--exclude=*", "--dirty", "--abbrev=8"]
    command = ["git", "-C", str(repository), *describe]
    commit = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    if commit.endswith("-dirty"):
        raise SystemExit("the tree differs from its commit: commit, or name one with --commit")
    return commit


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--world", type=int, default=1, help="GPUs (default: 1)")
    parser.add_argument("--limit", type=int, default=560, help="seconds (default: 560)")
    names = [step.name for step in STEPS]
    parser.add_argument("--steps", type=words_of(names), default=names, help="; ".join(names))
    parser.add_argument("--commit", help="where this is no Git checkout")
    args = parser.parse_args(arguments)
    start = time.monotonic()
    run = Run(args.folder, args.commit or commit_of(HERE.parent))
    for step in run.missing(args.world):
        left = args.limit - (time.monotonic() - start)
        if step.name in args.steps and step.seconds <= left:
            print(f"[{args.limit - left:.0f} s] {step.name}", flush=True)
            run.run(step, args.world)
            print(f"  {run.outcomes[-1]['outcome']}, {run.outcomes[-1]['seconds']} s", flush=True)
            run.write_readme()
    rest = [step.name for step in run.missing(args.world)]
    print(f"missing on {args.world} GPUs: {', '.join(rest) or 'nothing'}")
    return 1 if rest else 0


if __name__ == "__main__":
    sys.exit(main())
