"""The DGL examples run as they are printed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from tests.adapters.igbh_files import write_igbh
from tests.scripts import run_python

if importlib.util.find_spec("dgl") is None:
    pytest.skip("DGL is not installed", allow_module_level=True)

EXAMPLES = Path(__file__).parents[3] / "examples"


def accuracies(name: str, *arguments: str, ranks: int | None = None) -> list[float]:
    printed = output(name, *arguments, ranks=ranks)
    return [float(value) for value in re.findall(r"accuracy (\S+)", printed)]


def output(name: str, *arguments: str, ranks: int | None = None) -> str:
    done = run_python(EXAMPLES / f"{name}.py", *arguments, ranks=ranks)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("ranks", [None, 2])
def test_node_classification(ranks: int | None, device: torch.device) -> None:
    if ranks == 2 and device.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    options = ["--device", device.type, "--epochs", "5"]
    scores = accuracies("dgl_node_classification", *options, ranks=ranks)
    assert len(scores) == 5
    # Features alone are weak; the graph tells the communities apart.
    assert scores[-1] > 0.9


@pytest.mark.parametrize("option", [[], ["--no-dgl-graph"]], ids=["shared", "from_store"])
def test_link_prediction(option: list[str], device: torch.device) -> None:
    options = ["--device", device.type, "--epochs", "3", *option]
    scores = accuracies("dgl_link_prediction", *options)
    assert len(scores) == 3
    assert scores[-1] > 0.65


def test_rgat_on_igbh(device: torch.device, tmp_path: Path) -> None:
    write_igbh(tmp_path)
    options = ["--classes", "19", "--hidden", "32", "--batch-size", "24", "--lr", "0.002"]
    options += ["--epochs", "4"]
    ranks = 2 if device.type == "cpu" else 1
    printed = output("dgl_rgat_igbh", str(tmp_path), *options, "--device", device.type, ranks=ranks)
    losses = [float(value) for value in re.findall(r"loss ([\d.]+)", printed)]
    scores = [float(value) for value in re.findall(r"accuracy (\S+)", printed)]
    assert len(scores) == len(losses) == 4
    assert min(losses) < 2  # of a batch; 2.9 by guessing
    assert scores[-1] > 0.5  # of three papers


def test_full_graph_larger_than_the_budget() -> None:
    """Losses are the same. Biases before BatchNorm, whose gradients are rounding, are not."""
    options = ["--device", "cpu", "--epochs", "3"]
    printed = [output("dgl_full_graph", *options, *more) for more in ([], ["--memory-budget", "2"])]
    losses = [[float(value) for value in re.findall(r"loss (\S+),", text)] for text in printed]
    assert len(losses[0]) == 3
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)


def test_full_graph(device: torch.device) -> None:
    """Two ranks print what one process prints, although they drop out."""
    options = ["--device", device.type, "--epochs", "10"]
    ranks = [None, 2] if device.type == "cpu" or torch.cuda.device_count() > 1 else [None]
    printed = [output("dgl_full_graph", *options, ranks=count) for count in ranks]
    losses = [[float(value) for value in re.findall(r"loss (\S+),", text)] for text in printed]
    assert len(losses[0]) == 10
    assert losses[-1] == pytest.approx(losses[0], abs=1e-3)
    assert float(re.findall(r"accuracy (\S+)", printed[-1])[-1]) > 0.9
