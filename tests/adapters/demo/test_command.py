"""`peergraph demo` from end to end, on small graphs."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from peergraph.cli.__main__ import main
from tests.named_case import named_cases
from tests.scripts import run_python

pytest.importorskip("torch_geometric", reason="the demo needs torch-geometric")

NODES = 4898
DEMO = ["-m", "peergraph.cli", "demo", "--data", "products", "--scale", "0.002"]
SMALL = ["--ranks", "2", "--epochs", "20", "--batch-size", "50", "--fanouts", "4,3"]
CPU = [*DEMO, "--device", "cpu", *SMALL]


def check_output(out: str, result: dict[str, Any], ranks: int) -> None:
    assert (result["ranks"], result["num_nodes"], result["num_classes"]) == (ranks, NODES, 47)
    assert "4,898 nodes, 247," in out
    assert out.count("plan 'auto'") == 1
    assert f"epoch 20: loss {result['losses'][-1]:.4f}" in out
    for name, key in (("GraphSAGE", "accuracy"), ("MLP, no graph", "mlp_accuracy")):
        row = re.search(rf"^{name} +([\d.]+) +([\d.]+)$", out, re.MULTILINE)
        assert row is not None
        assert [float(v) for v in row.groups()] == pytest.approx(
            [result[key]["val"], result[key]["test"]], abs=1e-4
        )
    # All 489 test nodes were counted once.
    right = result["accuracy"]["test"] * 489
    assert right == pytest.approx(round(right))
    # The graph tells the labels, the features hardly do.
    assert result["accuracy"]["test"] > 5 / 47


def test_two_ranks(tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    done = run_python(*CPU, "--json", report)
    assert done.returncode == 0, done.stderr
    check_output(done.stdout, json.loads(report.read_text()), ranks=2)


@pytest.mark.gpus(1)
def test_on_gpu(tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    done = run_python(*DEMO, *SMALL, "--device", "cuda", "--ranks", "1", "--json", report)
    assert done.returncode == 0, done.stderr
    check_output(done.stdout, json.loads(report.read_text()), ranks=1)


def test_torchrun(tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    done = run_python(*CPU, "--epochs", "1", "--plan", "sharded", "--json", report, ranks=2)
    assert done.returncode == 0, done.stderr
    result = json.loads(report.read_text())
    assert (result["ranks"], result["plan"]["name"]) == (2, "sharded")


def test_full_graph(tmp_path: Path) -> None:
    results = []
    for ranks in (1, 2):
        report = tmp_path / f"{ranks}.json"
        command = [*CPU, "--full-graph", "--epochs", "4", "--ranks", str(ranks)]
        done = run_python(*command, "--json", report)
        assert done.returncode == 0, done.stderr
        results.append(json.loads(report.read_text()))
        assert f"full graph on {ranks} rank" in done.stdout  # The plan.
    assert results[1]["losses"] == pytest.approx(results[0]["losses"], rel=1e-4)
    assert results[1]["losses"][-1] < results[1]["losses"][0]


def test_interrupt_ends_all_processes() -> None:
    interrupted: list[int] = []

    def interrupt(pid: int, output: str) -> None:
        if "\nepoch 1" in output and not interrupted:
            interrupted.append(pid)
            os.killpg(pid, signal.SIGINT)

    done = run_python(*CPU, "--epochs", "100000", watch=interrupt)
    assert done.returncode == 130, done.stderr
    assert "peergraph demo: interrupted" in done.stderr
    deadline = time.monotonic() + 30
    while group_lives(*interrupted) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not group_lives(*interrupted)


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@named_cases(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "--epochs must be at least 1"),
        (["--ranks", "0"], "--ranks must be at least 1"),
        (["--hidden", "0"], "--hidden must be at least 1"),
        (["--batch-size", "-3"], "--batch-size must be at least 1"),
        (["--fanouts", "5,0"], "--fanouts must be positive"),
        (["--scale", "2"], "--scale must be from 0.0001 to 1"),
        (["--device", "cuda", "--ranks", "99"], "each of 99 ranks"),
    ],
)
def test_bad_options_start_nothing(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(import_module("torch.multiprocessing.spawn"), "start_processes", refuse)
    assert main(["demo", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_killed_rank_and_a_missing_folder_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spawning = import_module("torch.multiprocessing.spawn")

    def end(*args: Any, **kwargs: Any) -> None:
        error = spawning.ProcessExitedException
        raise error("process 1 was killed", 1, 123, exit_code=-9, signal_name="SIGKILL")

    monkeypatch.setattr(spawning, "start_processes", end)
    assert main(["demo", "--data", "products"]) == 1
    text = capsys.readouterr().err
    assert "process 1 was killed" in text
    assert "for want of memory: --data products --scale 0.01 needs less" in text

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise FileNotFoundError(2, "No usable temporary directory")

    monkeypatch.setattr(import_module("peergraph_demo.command"), "TemporaryDirectory", refuse)
    assert main(["demo", "--data", "products"]) == 2
    assert "demo: [Errno 2] No usable temporary directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fanouts", "5,x"], "expected numbers like 15,10,5, got '5,x'"),
        (["--plan", "magic"], "invalid choice: 'magic'"),
    ],
)
def test_unreadable_options(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["demo", *arguments])
    assert message in capsys.readouterr().err


@named_cases(
    ("text", "expected"),
    [("123", 123), ("4k", 4096), ("1.5G", 3 << 29), ("2MiB", 2 << 20), ("1TB", 1 << 40)],
)
def test_sizes(text: str, expected: int) -> None:
    from peergraph.cli.arguments import byte_count

    assert byte_count(text) == expected
