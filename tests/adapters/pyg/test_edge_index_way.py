"""The files that an edge index passes on its way to the SpMM kernel, as the documentation lists."""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch_geometric
from torch import Tensor

import peergraph
import peergraph._C as _C
import peergraph_pyg
from peergraph.aggregate import Csc
from peergraph.aggregate.kernels.arguments import CsrTensors
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix

ROOT = Path(__file__).parents[3]
PACKAGES = {
    Path(module.__file__ or "").parent: folder
    for module, folder in ((peergraph, "plugin"), (peergraph_pyg, "adapters"))
}
MOST = 18


def listed_files() -> list[str]:
    """The files in the table of the documentation, in order."""
    text = (ROOT / "docs/internals/edge_index.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `([^`]+)`", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    return [path for _, path in rows]


def carries_edges(value: Any) -> bool:
    """Whether a value is an edge index, or a part of it, or a structure made of one."""
    if isinstance(value, (tuple, list)):
        return any(carries_edges(item) for item in value)
    if isinstance(value, Tensor):
        return value.dtype in (torch.int32, torch.int64)
    return isinstance(value, (Csc, EdgeMatrix, CsrTensors, _C.CsrMatrix))


def source_file(code_path: str) -> str | None:
    """The file's path from the repository's root; None for other packages."""
    path = Path(code_path)
    for package, folder in PACKAGES.items():
        if path.is_relative_to(package):
            return f"{folder}/{path.relative_to(package.parent).as_posix()}"
    return None


def passed_files(layer: torch.nn.Module, x: Tensor, edge_index: Tensor) -> set[str]:
    """The Python files with a function that is called with the edges, in a call of the layer."""
    files: set[str] = set()

    def record(frame: FrameType, event: str, _: object) -> None:
        path = source_file(frame.f_code.co_filename) if event == "call" else None
        if path is not None and any(map(carries_edges, list(frame.f_locals.values()))):
            files.add(path)

    gc.disable()  # What it frees may run code of other files.
    sys.setprofile(record)
    try:
        layer(x, edge_index)
    finally:
        sys.setprofile(None)
        gc.enable()
    return files


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_python_files_are_listed(needs_gradient: bool) -> None:
    layer = torch_geometric.nn.SAGEConv(8, 4)
    peergraph_pyg.accelerate(layer)
    x = torch.randn(20, 8, requires_grad=needs_gradient)
    expected = {path for path in listed_files() if path.endswith(".py")}
    if needs_gradient:
        expected.add("plugin/peergraph/autograd.py")
    first = torch.randint(20, (2, 90))
    passed_files(layer, x, first)  # The first call may import modules.
    assert passed_files(layer, x, torch.randint(20, (2, 90))) == expected
    again = passed_files(layer, x, first)
    first_only = {
        "plugin/peergraph/aggregate/sparse/index_tensors.py",
        "plugin/peergraph/memory/device/plain_tensor.py",
    }
    assert expected - again == first_only


def test_compiled_files_are_listed() -> None:
    files = listed_files()
    compiled = [path for path in files if path.startswith("csrc/")]
    assert len(files) <= MOST
    assert compiled[0].endswith("bind.cpp")
    assert compiled[-1].endswith(".cu")
    for path in compiled:
        assert "CsrMatrix" in (ROOT / path).read_text() or "op.matrix" in (ROOT / path).read_text()
