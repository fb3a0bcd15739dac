"""Two machines with network addresses of their own: what the store sends is counted, and timed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.benchmarks.test_smoke import BENCHMARKS
from tests.scripts import run_python

sys.path.insert(0, str(BENCHMARKS))

from network.two_machines import run_on_two_machines, why_not

PROGRAM = Path(__file__).with_name("separate_networks.py")


@pytest.mark.timeout(300)
def test_a_graph_is_sent_once_and_batches_send_nothing() -> None:
    if reason := why_not():
        pytest.skip(reason)
    done = run_on_two_machines(PROGRAM, [], BENCHMARKS.parent, timeout_s=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0: " in done.stdout
    assert "rank 1: " in done.stdout


@pytest.mark.timeout(300)
def test_the_benchmark_of_the_overlap_on_few_nodes(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    out = tmp_path / "records.jsonl"
    options = ["--graph", "tiny/20", "--batch", "16", "--steps", "2", "--rounds", "1"]
    script = BENCHMARKS / "exchange_overlap.py"
    done = run_python(script, *options, "--wires", "0.5", "--out", out, timeout_s=250)
    assert done.returncode == 0, done.stderr[-3000:]
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["ddp"] for record in records] == [False, True]
    assert records[1]["mb"] > records[0]["mb"] > 0
    assert all(record["ratio"] > 0 and record["wire_ms"] > 0 for record in records)
