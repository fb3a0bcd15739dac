"""What `import peergraph` costs, and what it says when the compiled module is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from peergraph import _native

NEW_ROOTS = """
import sys, numpy, torch.distributed.nn.functional
before = set(sys.modules)
def new_roots():
    roots = {name.split(".")[0] for name in set(sys.modules) - before}
    return sorted(roots - sys.stdlib_module_names)
import peergraph
print("peergraph:", *new_roots())
import peergraph.cli.info
print("peergraph.cli.info:", *new_roots())
"""


def test_imports_only_torch_and_numpy() -> None:
    process = subprocess.run(
        [sys.executable, "-c", NEW_ROOTS], capture_output=True, text=True, check=True
    )
    modules = ["peergraph: peergraph", "peergraph.cli.info: peergraph"]
    assert process.stdout.splitlines() == modules


def test_explains_a_package_that_was_not_built(tmp_path: Path) -> None:
    text = _native.explain(ImportError("no _C"), [str(tmp_path)])
    assert "1. the package was not built" in text
    assert text.endswith("The import said: no _C")


def test_explains_a_build_for_another_python(tmp_path: Path) -> None:
    (tmp_path / "_C.cpython-39-x86_64-linux-gnu.so").touch()
    text = _native.explain(ImportError("no _C"), [str(tmp_path)])
    assert "1. it was built for another Python (_C.cpython-39-x86_64-linux-gnu.so)" in text


def test_explains_a_module_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / ("_C" + _native.SUFFIX)).touch()
    text = _native.explain(ImportError("GLIBCXX_9 not found"), [str(tmp_path)])
    assert "1. it was built on a newer system" in text
    assert "GLIBCXX_9" in text
