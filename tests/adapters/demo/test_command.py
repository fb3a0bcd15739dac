"""`peergraph demo` from end to end, on a graph of a few hundred nodes."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peergraph.cli.__main__ import main
from tests.named_case import named_cases
from tests.scripts import run_python

pytest.importorskip("torch_geometric", reason="the demo needs torch-geometric")

NODES, CLASSES = 400, 4
DEMO = ["-m", "peergraph.cli", "demo"]
# Of 101 training nodes a rank, the last batch has a single one.
SMALL = ["--device", "cpu", "--ranks", "2", "--epochs", "1", "--batch-size", "20", "--hidden", "16"]
SMALL += ["--fanouts", "4,3", "--lr", "0.01"]


def write_graph(path: Path, **changes: Any) -> Path:
    """Communities that tell the label, features that tell it badly; nodes without label too."""
    rng = np.random.default_rng(0)
    y = np.arange(NODES) % CLASSES
    indices = [
        np.unique(rng.choice(np.flatnonzero(y == y[v]), 6, replace=False)) for v in range(NODES)
    ]
    x = rng.standard_normal((NODES, 8)).astype(np.float32)
    x[np.arange(NODES), y] += 1
    order = rng.permutation(NODES)
    masks = np.zeros((3, NODES), bool)
    # 201 training nodes: the ranks' shares differ by one.
    for mask, part in zip(masks, np.split(order, [201, 301, 391]), strict=False):
        mask[part] = True
    y[order[391:]] = -1
    arrays = {
        "indptr": np.arange(0, 6 * NODES + 1, 6),
        "indices": np.concatenate(indices).astype(np.int32),
        "directed": np.array(True),
        "x": x,
        "y": y,
        "num_classes": np.array(CLASSES),
        "train_mask": masks[0],
        "val_mask": masks[1],
        "test_mask": masks[2],
    }
    np.savez_compressed(path, **{**arrays, **changes})
    return path


def check_output(out: str, result: dict[str, Any], ranks: int) -> None:
    assert result["ranks"] == ranks
    assert (result["num_nodes"], result["num_edges"]) == (NODES, 2 * 6 * NODES)
    assert "400 nodes, 2,400 edges (directed, used both ways)" in out
    assert "plan 'auto'" in out
    epoch = result["epochs"][-1]
    assert f"loss {epoch['loss']:.4f}, validation accuracy {epoch['val_accuracy']:.4f}" in out
    row = re.search(r"^GraphSAGE +([\d.]+) +([\d.]+)$", out, re.MULTILINE)
    assert row is not None
    assert [float(v) for v in row.groups()] == pytest.approx(
        [result["val_accuracy"], result["test_accuracy"]], abs=1e-4
    )
    row = re.search(r"^MLP, no graph +([\d.]+) +([\d.]+)$", out, re.MULTILINE)
    assert row is not None
    assert [float(v) for v in row.groups()] == pytest.approx(
        [result["mlp_val_accuracy"], result["mlp_test_accuracy"]], abs=1e-4
    )
    # All 90 test nodes were counted once.
    assert result["test_accuracy"] * 90 == pytest.approx(round(result["test_accuracy"] * 90))
    assert result["test_accuracy"] > 1.5 / CLASSES
    phases = epoch["sampling"] + epoch["gathering"] + epoch["training"]
    assert 0 < phases <= epoch["seconds"] * 1.001
    assert min(epoch["sampling"], epoch["gathering"], epoch["training"]) > 0


def test_two_ranks(tmp_path: Path) -> None:
    data, report = write_graph(tmp_path / "toy.npz"), tmp_path / "out.json"
    done = run_python(*DEMO, "--data", data, *SMALL, "--json", report, "--measure")
    assert done.returncode == 0, done.stderr
    check_output(done.stdout, json.loads(report.read_text()), ranks=2)
    assert "epoch 1/1" in done.stderr  # the progress bar
    assert done.stdout.count("plan 'auto'") == 1
    assert "reads of a mini-batch on rank 0, 1" in done.stdout


@pytest.mark.gpus(1)
def test_on_gpu(tmp_path: Path) -> None:
    data, report = write_graph(tmp_path / "toy.npz"), tmp_path / "out.json"
    command = [*DEMO, "--data", data, *SMALL]
    done = run_python(*command, "--device", "cuda", "--ranks", "1", "--json", report)
    assert done.returncode == 0, done.stderr
    check_output(done.stdout, json.loads(report.read_text()), ranks=1)


def test_torchrun_with_workers(tmp_path: Path) -> None:
    data, report = write_graph(tmp_path / "toy.npz"), tmp_path / "out.json"
    command = [*DEMO, "--data", data, *SMALL]
    command += ["--num-workers", "1", "--plan", "sharded", "--json", report]
    done = run_python(*command, ranks=2)
    assert done.returncode == 0, done.stderr
    result = json.loads(report.read_text())
    assert result["ranks"] == 2
    assert result["plan"]["name"] == "sharded"
    assert result["test_accuracy"] > 1.5 / CLASSES


def test_full_graph(tmp_path: Path) -> None:
    data = write_graph(tmp_path / "toy.npz")
    results = []
    for ranks in (1, 2):
        report = tmp_path / f"{ranks}.json"
        command = [*DEMO, "--data", data, *SMALL, "--full-graph", "--epochs", "4"]
        command += ["--ranks", str(ranks), "--dropout", "0.5", "--json", report]
        done = run_python(*command, ranks=ranks)
        assert done.returncode == 0, done.stderr
        results.append(json.loads(report.read_text()))
        assert f"full graph on {ranks} rank" in done.stdout  # The plan.
        assert "full graph" in done.stderr  # The progress bar.
    losses = [[epoch["loss"] for epoch in result["epochs"]] for result in results]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert results[1]["test_accuracy"] > 1.5 / CLASSES


def test_failure_of_a_rank_is_shown(tmp_path: Path) -> None:
    # The names of the arrays are right: only the rank that reads them finds out.
    data = write_graph(tmp_path / "bad.npz", val_mask=np.zeros(NODES, bool))
    done = run_python(*DEMO, "--data", data, *SMALL)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "masks must be bool [400], each with a node in it" in done.stderr


def test_interrupt_ends_all_processes(tmp_path: Path) -> None:
    data = write_graph(tmp_path / "toy.npz")
    interrupted: list[int] = []

    def interrupt(pid: int, output: str) -> None:
        if "\nepoch 1/" in output and not interrupted:
            interrupted.append(pid)
            os.killpg(pid, signal.SIGINT)

    command = [*DEMO, "--data", data, *SMALL, "--epochs", "100000"]
    done = run_python(*command, watch=interrupt)
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "--epochs must be at least 1"),
        (["--device", "cuda", "--ranks", "99"], "each of 99 ranks"),
        (["--data", "/no/such/file.npz"], "No such file"),
        (["--data", __file__], "is not a .npz file"),
        (["--scale", "0.5"], "--scale is for --data products"),
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

    monkeypatch.setattr("peergraph_demo.launch.spawn", refuse)
    assert main(["demo", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fanouts", "5,x"], "expected numbers like 15,10,5, got '5,x'"),
        (["--memory-budget", "much"], "expected a size like 512M or 10G, got 'much'"),
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
