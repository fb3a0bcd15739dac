"""The examples of typed graphs and of GraphBolt run as they are printed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from tests.scripts import run_python

if importlib.util.find_spec("dgl") is None:
    pytest.skip("DGL is not installed", allow_module_level=True)

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("name", ["dgl_rgcn_hetero", "dgl_graphbolt"])
def test_example(name: str, device: torch.device) -> None:
    if name == "dgl_graphbolt":
        pytest.importorskip("peergraph_dgl.graphbolt", exc_type=ImportError)
    done = run_python(EXAMPLES / f"{name}.py", "--device", device.type)
    assert done.returncode == 0, done.stderr
    accuracies = [float(value) for value in re.findall(r"test accuracy (\S+)", done.stdout)]
    assert len(accuracies) == 5
    # Features alone are weak; the graph tells the communities apart.
    assert accuracies[-1] > 0.9
