"""The DGL examples run as they are printed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if importlib.util.find_spec("dgl") is None:
    pytest.skip("DGL is not installed", allow_module_level=True)

EXAMPLES = Path(__file__).parents[3] / "examples"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def accuracies(*command: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return [float(value) for value in re.findall(r"accuracy (\S+)", done.stdout)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("launcher", [[], TORCHRUN], ids=["1 process", "2 ranks"])
def test_node_classification(launcher: list[str], device: torch.device) -> None:
    if launcher and device.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    script = str(EXAMPLES / "dgl_node_classification.py")
    scores = accuracies(*launcher, script, "--device", device.type, "--epochs", "5")
    assert len(scores) == 5
    # Features alone are weak; the graph tells the communities apart.
    assert scores[-1] > 0.9


@pytest.mark.timeout(240)
@pytest.mark.parametrize("option", [[], ["--no-dgl-graph"]], ids=["shared", "from_store"])
def test_link_prediction(option: list[str], device: torch.device) -> None:
    script = str(EXAMPLES / "dgl_link_prediction.py")
    scores = accuracies(script, "--device", device.type, "--epochs", "3", *option)
    assert len(scores) == 3
    assert scores[-1] > 0.65
