"""Two machines with network addresses of their own: what the store sends is counted, and timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.running import BENCHMARKS, read
from tests.scripts import Finished, run_python

PROGRAM = Path(__file__).with_name("separate_networks.py")


def _run(*command: str | Path) -> Finished:
    """What a program has printed that runs on two machines; skips where there cannot be two."""
    done = run_python(*command, timeout_s=250)
    if done.returncode == 2:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.timeout(300)
def test_a_graph_is_sent_once_and_batches_send_nothing() -> None:
    done = _run(PROGRAM)
    assert "rank 0: " in done.stdout
    assert "rank 1: " in done.stdout


@pytest.mark.timeout(300)
def test_the_benchmark_of_the_overlap_on_few_nodes(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    options = ["--graph", "tiny/20", "--batch", "16", "--steps", "2", "--rounds", "1"]
    _run(BENCHMARKS / "exchange_overlap.py", *options, "--wires", "0.5", "--out", out)
    records = read(out)
    assert [record["ddp"] for record in records] == [False, True]
    assert records[1]["mb"] > records[0]["mb"] > 0
    assert all(record["ratio"] > 0 and record["wire_ms"] > 0 for record in records)
