"""The compiled module stands alone: one build serves any torch, with or without a driver."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from peergraph import _C

BINARY = Path(_C.__file__)
SYSTEM_LIBRARIES = {"libstdc++.so", "libgcc_s.so", "libc.so", "libm.so", "libdl.so", "librt.so"}
SYSTEM_LIBRARIES |= {"libpthread.so", "ld-linux-x86-64.so", "ld-linux-aarch64.so"}


def readelf(*options: str) -> str:
    if shutil.which("readelf") is None:
        pytest.skip("readelf (binutils) is not installed")
    command = ["readelf", "--wide", *options, str(BINARY)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_needs_system_libraries_only() -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.*?\.so)[.\d]*\]", readelf("--dynamic"))
    assert "libstdc++.so" in needed
    assert set(needed) <= SYSTEM_LIBRARIES


def test_has_no_torch_symbol() -> None:
    symbols = [line.split()[-1] for line in readelf("--dyn-syms").splitlines() if line.split()]
    assert "PyInit__C" in symbols
    assert [s for s in symbols if re.search(r"torch|c10|_ZNK?2at", s)] == []


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
