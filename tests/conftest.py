"""Fixtures shared by all tests: devices, GPU requirements."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import peergraph._C as _C
from peergraph.testing import preload

# Helpers of tests say what they compared, as tests do.
pytest.register_assert_rewrite(*(f"tests.{p.name}" for p in Path(__file__).parent.iterdir()))

# What most tests of ranks take seconds to import; optimizers import the compiler.
preload("pytest", "torch._dynamo", "torch_geometric.loader", "peergraph_pyg")

NUM_GPUS = torch.cuda.device_count() if _C.has_cuda else 0
REQUIRED_GPUS = int(os.environ.get("PEERGRAPH_REQUIRE_GPUS", "0"))


def require_gpus(count: int) -> None:
    """Skips the running test without `count` GPUs, or fails it where they were promised."""
    if count <= NUM_GPUS:
        return
    reason = f"needs {count} GPU(s) and a CUDA build, found {NUM_GPUS}"
    if count <= REQUIRED_GPUS:
        pytest.fail(f"PEERGRAPH_REQUIRE_GPUS={REQUIRED_GPUS}, but the test {reason}")
    pytest.skip(reason)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device in turn; a test that takes it runs on the CPU and on a GPU."""
    if request.param == "cuda":
        require_gpus(1)
        return torch.device("cuda", 0)
    return torch.device("cpu")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpus(n): the test needs n GPUs")


@pytest.fixture(autouse=True)
def _gpus_marker(request: pytest.FixtureRequest) -> None:
    marker = request.node.get_closest_marker("gpus")
    if marker is not None:
        require_gpus(marker.args[0])
