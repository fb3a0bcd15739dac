"""The PyG examples run as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(240)
def test_sage_with_ddp(device: torch.device) -> None:
    ranks = "2" if device.type == "cpu" else "1"
    out = run(
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        ranks,
        str(EXAMPLES / "sage_pyg.py"),
        "--device",
        device.type,
        "--epochs",
        "3",
    )
    accuracies = [float(value) for value in re.findall(r"test accuracy (\S+)", out)]
    assert len(accuracies) == 3
    # Features alone are weak; the graph tells the communities apart.
    assert accuracies[-1] > 0.9


@pytest.mark.timeout(240)
def test_embeddings_with_ddp(device: torch.device) -> None:
    ranks = "2" if device.type == "cpu" else "1"
    out = run(
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        ranks,
        str(EXAMPLES / "embeddings_pyg.py"),
        "--device",
        device.type,
    )
    accuracies = [float(value) for value in re.findall(r"test accuracy (\S+)", out)]
    assert len(accuracies) == 8
    assert accuracies[-1] > 0.8


def test_single_process(device: torch.device) -> None:
    out = run(sys.executable, str(EXAMPLES / "single_process.py"), "--device", device.type)
    assert "100 films" in out
    assert "8000 links, 4000 of them real" in out
    assert "16.0" in out


def test_cuda_graph(device: torch.device) -> None:
    out = run(sys.executable, str(EXAMPLES / "cuda_graph.py"), "--device", device.type)
    accuracies = [float(value) for value in re.findall(r"steps (\S+)", out)]
    assert len(accuracies) == 2
    assert accuracies[1] > 0.8
