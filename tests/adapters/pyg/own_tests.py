"""PyG's own tests of its layers, run on ours.

    python -m tests.adapters.pyg.own_tests PATH_OF_A_CHECKOUT_OF_PYG [options of pytest]

The checkout must be of the version that is installed; packages of PyG come without tests. Our
layers take the place of PyG's wherever PyG, or a test that imports from it, names them. What fails
is run once more on PyG's layers, and counts only if it passes there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch.package
import torch_geometric.nn

from peergraph_pyg import accelerate
from peergraph_pyg import nn as fast

CONVS = ("sage", "gcn", "gat", "gatv2", "gin", "graph", "gated_graph", "rgcn", "hetero")
FILES = (
    *(f"test/nn/conv/test_{name}_conv.py" for name in CONVS),
    "test/nn/conv/test_message_passing.py",
    "test/nn/conv/test_static_graph.py",
    "test/nn/models/test_basic_gnn.py",
    "test/nn/test_model_summary.py",
    "test/nn/test_sequential.py",
    "test/nn/test_to_hetero_module.py",
    "test/nn/test_to_hetero_transformer.py",
    "test/nn/test_to_hetero_with_bases_transformer.py",
    "test/explain",
    "test/utils/test_trim_to_layer.py",
)


def replace_layers() -> None:
    """Puts our layers under PyG's names, in all modules of PyG that hold them."""
    replaced = {getattr(torch_geometric.nn.conv, name): name for name in fast.__all__}
    for path, module in list(sys.modules.items()):
        if path.split(".")[0] != "torch_geometric":
            continue
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and value in replaced:
                setattr(module, name, getattr(fast, replaced[value]))
    init = torch_geometric.nn.models.basic_gnn.BasicGNN.__init__
    torch_geometric.nn.models.basic_gnn.BasicGNN.__init__ = _accelerated(init)
    exporter = torch.package.PackageExporter
    exporter.__init__ = _knowing_us(exporter.__init__)


def _accelerated(init: Callable[..., None]) -> Callable[..., None]:
    """PyG's ready-made models are made of our layers now; here goes what else is done to them."""

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        accelerate(self)

    return wrapped


def _knowing_us(init: Callable[..., None]) -> Callable[..., None]:
    """A test names the modules that a package may import; these are of ours."""

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.extern("peergraph_pyg.**")

    return wrapped


class Failures:
    """A plugin of pytest that collects what fails."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tests.append(report.nodeid)


def run_with_reasons(
    root: Path,
    paths: Sequence[Path],
    options: Sequence[str],
    reason_of: Callable[[str], str | None],
) -> int:
    """Runs tests of a checkout, and prints those that fail, with reasons that are known.

    Returns how many fail for no such reason, or pytest's code if the tests could not run.
    """
    failures = Failures()
    # Settings and fixtures are the checkout's.
    settings = ["--rootdir", str(root), "-p", "no:cacheprovider", *options]
    code = pytest.main([*settings, *map(str, paths)], plugins=[failures])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return code
    reasons = {test: reason_of(test) for test in failures.tests}
    for test, reason in reasons.items():
        print("ours fails:" if reason is None else f"{reason}:", test)
    return list(reasons.values()).count(None)


def main(checkout: str, *options: str) -> int:
    """Runs those of `FILES` that the checkout has; 0 if none fails on our layers alone."""
    root = Path(checkout).resolve()
    files = [str(root / file) for file in FILES if (root / file).exists()]
    if not files:
        raise SystemExit(f"{checkout} has none of PyG's tests of layers")
    # Settings and fixtures are PyG's.
    settings = ["--rootdir", str(root), "-p", "no:cacheprovider", *options]
    failures = Failures()
    replace_layers()
    code = pytest.main([*settings, *files], plugins=[failures])
    if code != pytest.ExitCode.TESTS_FAILED:
        return code
    ours = [test for test in dict.fromkeys(failures.tests) if _passes_on_pyg(root, test)]
    for test in failures.tests:
        print("only ours fails:" if test in ours else "PyG's fails too:", test)
    return len(ours)


def _passes_on_pyg(root: Path, test: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, "--rootdir", root, root / test], stdout=subprocess.DEVNULL)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
