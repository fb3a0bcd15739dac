"""benchmarks/sanitize_gpu.sh with a program in place of NVIDIA's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sanitize_gpu.sh"
# memcheck finds nothing, racecheck two errors; synccheck never ends, initcheck does not start.
STAND_IN = """#!/bin/bash
case $2 in initcheck) exit 1;; esac
while [ $# -gt 0 ]; do
  case $1 in --tool) tool=$2;; --log-file) log=$2;; esac
  shift
done
echo "tests/x.py::test_results[cuda-gather] PASSED"
case $tool in
  memcheck) echo "========= ERROR SUMMARY: 0 errors" > "$log";;
  racecheck)
    echo "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)" > "$log"
    exit 99;;
  synccheck) exec sleep 60;;
esac
"""


def run(tmp_path: Path, *tools: str) -> tuple[int, dict[str, list[str]]]:
    """Exit status, and the cells of the table's rows by tool."""
    stand_in = tmp_path / "compute-sanitizer"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    environment = os.environ | {
        "SANITIZER": str(stand_in),
        "PYTHON": sys.executable,
        "LIMIT": "3",
        "LOGS": str(tmp_path / "logs"),
    }
    done = subprocess.run(
        ["bash", str(SCRIPT), "--quick", *tools],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return done.returncode, {row[0]: row[1:-1] for row in rows}


def test_nothing_found(tmp_path: Path) -> None:
    code, rows = run(tmp_path, "memcheck")
    assert (code, rows) == (0, {"memcheck": ["passed", "0", "1", "0"]})


def test_what_each_tool_said(tmp_path: Path) -> None:
    code, rows = run(tmp_path)
    assert code == 1
    assert rows == {
        "memcheck": ["passed", "0", "1", "0"],
        "racecheck": ["**found something**", "2", "1", "0"],
        "initcheck": ["**failed** (1)", "?", "0", "0"],
        "synccheck": ["**cut off after 3 s**", "?", "1", "0"],
    }


def test_unknown_tool(tmp_path: Path) -> None:
    assert run(tmp_path, "leakcheck") == (2, {})
