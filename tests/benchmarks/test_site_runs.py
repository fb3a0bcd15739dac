"""The steps of the benchmarks page can be run, in several calls, and fill one folder."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks.running import BENCHMARKS, read

RECORD = {"bench": "gather", "world": 1, "device": "CPU", "torch": "2.13", "ms": 2.5}
Load = Callable[[str], dict[str, Any]]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """The names of a script that is no module of a package."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return lambda name: runpy.run_path(str(BENCHMARKS / name))


@pytest.mark.parametrize("world", [1, 4])
def test_scripts_take_the_arguments_of_their_steps(load: Load, world: int) -> None:
    steps = load("page/steps.py")["STEPS"]
    assert len({step.name for step in steps}) == len(steps)
    for step in steps:
        script, *arguments = step.command(world, "records.jsonl")
        parser = load(script)["arguments"]()
        # The harness adds the peers, which it checks by name.
        args = parser.parse_args(arguments)
        assert args.world == world
        assert args.deadline < step.seconds < 560


def test_a_step_that_failed_is_run_again_and_only_passed_ones_count(
    load: Load, tmp_path: Path
) -> None:
    runs = load("site_runs.py")
    script = tmp_path / "bench.py"
    script.write_text(
        "import sys, json, pathlib\n"
        "out = pathlib.Path(sys.argv[sys.argv.index('--out') + 1])\n"
        f"out.write_text(json.dumps({RECORD}) + '\\n')\n"
        f"sys.exit(not pathlib.Path({str(tmp_path / 'good')!r}).exists())\n"
    )
    step = runs["Step"]("gather", str(script), "", 60)
    folder = tmp_path / "run"
    run = runs["Run"](folder, "abc12345")
    run.run(step, 1)
    assert run.outcomes[-1]["outcome"] == "failed: exit 1"
    assert not (folder / "records.jsonl").exists()
    assert "gather" in [s.name for s in run.missing(1)]

    (tmp_path / "good").touch()
    again = runs["Run"](folder, "abc12345")
    again.run(step, 1)
    assert read(folder / "records.jsonl") == [{**RECORD, "step": "gather"}]
    assert "gather" not in [s.name for s in again.missing(1)]
    assert "gather" in [s.name for s in again.missing(2)]
    again.write_readme()
    assert "abc12345" in (folder / "README.md").read_text()


def test_a_folder_is_of_one_commit(load: Load, tmp_path: Path) -> None:
    runs = load("site_runs.py")
    (tmp_path / "steps.jsonl").write_text(json.dumps({"commit": "abc12345"}) + "\n")
    with pytest.raises(SystemExit, match="has runs of abc12345, this is def67890"):
        runs["Run"](tmp_path, "def67890")
