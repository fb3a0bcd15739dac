"""Fixtures shared by all tests: devices, GPU requirements."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from peergraph import num_gpus
from peergraph.testing import preload
from tests import shared_forks
from tests.default_device import cpu_by_default
from tests.gpu_turns import turn

# What is imported and collected stays: looking for garbage in it takes a third of the time.
gc.disable()

# Helpers of tests say what they compared, as tests do.
pytest.register_assert_rewrite(*(f"tests.{p.name}" for p in Path(__file__).parent.iterdir()))

# A shell that runs the tests in the background has them, and all that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NUM_GPUS = num_gpus()
# Processes that wake up do not interrupt others: where a sending rank was interrupted, a thread of
# Gloo spins until it gets the lock that the rank holds.
if NUM_GPUS == 0:
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
# What most tests of ranks take seconds to import; optimizers import the compiler.
preload("pytest", "torch._dynamo")
preload("tests.pyg_without_cuda", "torch_geometric.loader", "peergraph_pyg", "peergraph_dgl")
preload("tests.conv_templates")
if NUM_GPUS == 0:
    preload("tests.seeds_without_gpus")
    importlib.import_module("tests.seeds_without_gpus")
preload("tests.huge_pages")

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
    config.addinivalue_line("markers", "alone: on GPUs, no other test runs beside it")
    if hasattr(config, "workerinput"):
        shared_forks.adopt(config.workerinput["forks"])


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, in its main process
def pytest_configure_node(node: Any) -> None:
    node.workerinput["forks"] = shared_forks.start()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Leaves modules and the collected tests out of later collections of garbage."""
    gc.freeze()
    gc.enable()


# Tests that take longest. They begin first, so that no worker runs one when the others have ended.
_LONGEST = (
    "tests/machines/",
    "tests/aggregate/test_gradcheck_compile_amp.py",
    "tests/adapters/dgl/test_import_dgl.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """One after the other on GPUs: tests measure free memory, and each process takes some.

    Elsewhere one more than there are cores, up to four: many tests wait for ranks.
    """
    return 0 if NUM_GPUS else min(4, 1 + len(os.sched_getaffinity(0)))


@pytest.hookimpl(tryfirst=True)
def pytest_warning_recorded(warning_message: warnings.WarningMessage) -> None:
    """Names no class of DGL: pytest-xdist's main process would import DGL to get it."""
    if warning_message.category.__module__.partition(".")[0] == "dgl":
        warning_message.category = UserWarning
        warning_message.message = UserWarning(str(warning_message.message))


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What was measured on this machine by others decides nothing here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def one_thread_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchrun has it: threads of OpenMP spin, and the ranks' would wait for each other."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _gpus_marker(request: pytest.FixtureRequest) -> None:
    marker = request.node.get_closest_marker("gpus")
    if marker is not None:
        require_gpus(marker.args[0])


@pytest.fixture(autouse=True)
def _cpu_unless_asked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests that ask for no GPU have the CPU as the default device, as without GPUs."""
    parameters = getattr(getattr(request.node, "callspec", None), "id", "")
    asks = request.node.get_closest_marker("gpus") is not None
    if NUM_GPUS == 0 or asks or "cuda" in parameters or "gpu" in parameters:
        yield
        return
    with cpu_by_default():
        yield


@pytest.fixture(autouse=True)
def _turn_on_gpus(request: pytest.FixtureRequest) -> Iterator[None]:
    """Without GPUs nothing is measured that other tests change."""
    if NUM_GPUS == 0:
        yield
        return
    with turn(alone=request.node.get_closest_marker("alone") is not None):
        yield
