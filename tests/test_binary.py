"""The compiled module stands alone: one build serves any torch, with or without a driver."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from peergraph import _C
from tests.scripts import run_python

BINARY = Path(_C.__file__)
SYSTEM_LIBRARIES = {"libstdc++.so", "libgcc_s.so", "libc.so", "libm.so", "libdl.so", "librt.so"}
SYSTEM_LIBRARIES |= {"libpthread.so", "ld-linux-x86-64.so", "ld-linux-aarch64.so"}


def readelf(*options: str) -> str:
    if shutil.which("readelf") is None:
        pytest.skip("readelf (binutils) is not installed")
    command = ["readelf", "--wide", *options, str(BINARY)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_needs_system_libraries_only() -> None:
    libraries = re.findall(r"\(NEEDED\).*\[(.*?\.so)[.\d]*\]", readelf("--dynamic"))
    assert "libc.so" in libraries  # libstdc++.so too, unless the compiler has a static one
    assert set(libraries) <= SYSTEM_LIBRARIES


def dynamic_symbols() -> list[tuple[str, str]]:
    """Sections and names; the section of what the module does not define itself is UND."""
    rows = [line.split() for line in readelf("--dyn-syms").splitlines()]
    return [(row[6], row[7]) for row in rows if len(row) >= 8 and row[0][:-1].isdigit()]


def test_exports_nothing_but_its_entry() -> None:
    """Whatever else it exported, a library loaded later would take for its own (libstdc++'s)."""
    assert [name for section, name in dynamic_symbols() if section != "UND"] == ["PyInit__C"]


def test_has_no_torch_symbol() -> None:
    names = [name for _, name in dynamic_symbols()]
    assert "PyInit__C" in names
    assert [name for name in names if re.search(r"torch|c10|_ZNK?2at", name)] == []


ERRORS_LEAVE = """
from concurrent.futures import ThreadPoolExecutor
import pytest
import torch
from peergraph import _C

ids = torch.arange(100_000)

def module_raises(bad_id):
    found = _C.IdList(ids=ids)
    _C.check_ids(found, len(ids), 2)
    with pytest.raises(IndexError, match=str(bad_id)):
        _C.check_ids(found, bad_id, 2)
    with pytest.raises(ValueError, match="ids must be int32 or int64"):
        _C.IdList(ids=torch.zeros(1))
    with pytest.raises(TypeError, match="incompatible"):
        _C.check_ids("ids", 1, 1)

def torch_raises(index):
    with pytest.raises(RuntimeError, match="must match"):
        torch.zeros(2) + torch.zeros(3)
    with pytest.raises(IndexError):
        torch.zeros(2)[index]
    torch.zeros(3, requires_grad=True).sum().backward()

with ThreadPoolExecutor(4) as pool:
    for function in (module_raises, torch_raises, module_raises):
        list(pool.map(function, range(50_000, 50_008)))
"""


def test_errors_leave_it_beside_torch() -> None:
    """Loaded after torch, and before it: the package loads the module first, as ranks do."""
    command = [sys.executable, "-c", ERRORS_LEAVE]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    done = run_python("-c", ERRORS_LEAVE)
    assert done.returncode == 0, done.stderr


def test_loads_without_torch() -> None:
    code = "import sys, _C; assert not {'torch', 'numpy'} & set(sys.modules); print(_C.has_cuda)"
    # -S: no site-packages, so nothing but the binary itself can be found.
    process = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=BINARY.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.strip() == str(_C.has_cuda)


def stub_maker() -> Any:
    path = Path(__file__).parents[1] / "csrc" / "cmake" / "make_stub.py"
    spec = importlib.util.spec_from_file_location("make_stub", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_stub_is_that_of_the_module() -> None:
    """`make stub` writes it; functions of builds with CUDA count in these only by their names."""
    pytest.importorskip("pybind11_stubgen")
    maker = stub_maker()
    committed = maker.definitions(maker.STUB.read_text())
    generated = maker.definitions(maker.generate())
    cuda_only = {name for name in committed if name.split(".")[-1] in maker.CUDA_ONLY}
    assert {name.split(".")[-1] for name in cuda_only} == maker.CUDA_ONLY
    if _C.has_cuda:
        assert cuda_only <= generated.keys()
    for names in (committed, generated):
        for name in cuda_only:
            names.pop(name, None)
    assert generated == committed
