"""The PyG examples run as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_geometric.typing

from tests.adapters.igbh_files import write_igbh
from tests.scripts import run_python

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(name: str, *arguments: str | Path, ranks: int | None = None) -> str:
    done = run_python(EXAMPLES / f"{name}.py", *arguments, ranks=ranks)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sage_with_ddp(device: torch.device) -> None:
    ranks = 2 if device.type == "cpu" else 1
    out = run("sage_pyg", "--device", device.type, "--epochs", "3", ranks=ranks)
    accuracies = [float(value) for value in re.findall(r"test accuracy (\S+)", out)]
    assert len(accuracies) == 3
    # Features alone are weak; the graph tells the communities apart.
    assert accuracies[-1] > 0.9


def test_embeddings_with_ddp(device: torch.device) -> None:
    ranks = 2 if device.type == "cpu" else 1
    out = run("embeddings_pyg", "--device", device.type, ranks=ranks)
    accuracies = [float(value) for value in re.findall(r"test accuracy (\S+)", out)]
    assert len(accuracies) == 8
    assert accuracies[-1] > 0.8


def test_single_process(device: torch.device) -> None:
    out = run("single_process", "--device", device.type)
    assert "100 films" in out
    assert "8000 links, 4000 of them real" in out
    assert "16.0" in out


def test_cuda_graph(device: torch.device) -> None:
    out = run("cuda_graph", "--device", device.type)
    accuracies = [float(value) for value in re.findall(r"steps (\S+)", out)]
    assert len(accuracies) == 2
    assert accuracies[1] > 0.8


def test_full_graph(device: torch.device) -> None:
    outputs = [
        run("pyg_full_graph", "--device", device.type, "--epochs", "10", ranks=ranks)
        for ranks in ((1, 2) if device.type == "cpu" else (1,))
    ]
    accuracies = [float(value) for value in re.findall(r"test accuracy (\S+)", outputs[0])]
    assert len(accuracies) == 2
    assert accuracies[-1] > 0.9
    # Dropout included, ranks change nothing.
    assert len(set(outputs)) == 1


def test_full_graph_larger_than_the_budget() -> None:
    options = ("--device", "cpu", "--epochs", "2")
    resident = run("pyg_full_graph", *options)
    assert run("pyg_full_graph", *options, "--memory-budget", "2") == resident


def test_rgat_on_igbh(device: torch.device, tmp_path: Path) -> None:
    write_igbh(tmp_path)
    ranks = 2 if device.type == "cpu" else 1
    options = ["--classes", "19", "--hidden", "32", "--batch-size", "24", "--lr", "0.005"]
    options += ["--epochs", "2"]
    out = run("rgat_igbh", tmp_path, *options, "--device", device.type, ranks=ranks)
    losses = [float(value) for value in re.findall(r"loss ([\d.]+)", out)]
    accuracies = [float(value) for value in re.findall(r"accuracy (\S+)", out)]
    assert len(accuracies) == len(losses) == 2
    assert losses[-1] < 2  # 2.9 by guessing
    assert accuracies[-1] > 0.5  # a twentieth by guessing


def test_ray_train(tmp_path: Path) -> None:
    pytest.importorskip("ray.train.torch", reason="needs ray[train], which no extra installs")
    script = [sys.executable, EXAMPLES / "ray_train_pyg.py", "--device", "cpu"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=250, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (accuracy,) = re.findall(r"training accuracy (\S+)", done.stdout)
    assert float(accuracy) > 0.7


@pytest.mark.parametrize("ranks", [1, 2])
def test_relational(device: torch.device, ranks: int) -> None:
    for module in ("duckdb", "pandas", "torch_frame"):
        pytest.importorskip(module)
    small = ["--rows", "6000", "--steps", "5", "--batch-size", "32", "--neighbors", "6", "3"]
    small += ["--channels", "16", "--device", device.type]
    if device.type == "cuda" and ranks > torch.cuda.device_count():
        pytest.skip(f"needs {ranks} GPUs")
    out = run("relational/train", *small, ranks=None if ranks == 1 else ranks)
    for task in ("entity", "recommendation"):
        losses = [float(value) for value in re.findall(rf"{task} epoch \d: loss (\S+),", out)]
        assert len(losses) == 2
        assert losses[1] < losses[0]


def test_relational_needs_three_lines(tmp_path: Path) -> None:
    """Without the lines that use Peergraph, it is a script of PyG, for its own sampler."""
    lines = (EXAMPLES / "relational/train.py").read_text().splitlines(keepends=True)
    without = [line for line in lines if not re.search(r"  # \(\d\)$", line)]
    assert len(lines) - len(without) == 3
    assert "peergraph" not in "".join(without)
    if not torch_geometric.typing.WITH_PYG_LIB:
        return
    for name in ("database.py", "model.py"):
        (tmp_path / name).write_text((EXAMPLES / "relational" / name).read_text())
    (tmp_path / "train.py").write_text("".join(without))
    small = ["--rows", "6000", "--steps", "2", "--batch-size", "32", "--neighbors", "6", "3"]
    done = run_python(tmp_path / "train.py", *small, "--epochs", "1", "--device", "cpu")
    assert done.returncode == 0, done.stderr
