"""A release says one version everywhere, and its scripts know the supported Pythons."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from release import make_wheels, wheel_matrix
from release.interpreters import interpreter

from tests.versions import project

ROOT = Path(__file__).parent.parent


def test_one_version_everywhere() -> None:
    version = project()["version"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [version]
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == version


def test_wheels_are_for_the_supported_pythons() -> None:
    classifiers = [c.split(" :: ") for c in project()["classifiers"]]
    named = {c[-1] for c in classifiers if c[:2] == ["Programming Language", "Python"]}
    assert named >= set(make_wheels.PYTHONS)
    assert project()["requires-python"] == f">={make_wheels.PYTHONS[0]}"


def test_interpreters_are_found_or_given() -> None:
    here = "{}.{}".format(*sys.version_info[:2])
    assert interpreter(here, [f"{here}=/opt/python", "3.99=/other"]) == "/opt/python"
    with pytest.raises(FileNotFoundError, match="--python 3.99=PATH"):
        interpreter("3.99")


def test_cells_of_the_matrix(tmp_path: Path) -> None:
    for tag in ("cp313", "cp310"):
        name = f"peergraph-1.2.3-{tag}-{tag}-manylinux_2_35_x86_64.whl"
        (tmp_path / name).write_bytes(b"12")
    cells = wheel_matrix.cells(tmp_path, [])
    assert [(cell.python, cell.versions) for cell in cells] == [
        *(("3.10", "newest"), ("3.10", "oldest")),
        *(("3.13", "newest"), ("3.13", "oldest")),
    ]
    [chosen] = wheel_matrix.cells(tmp_path, ["3.10", "oldest"])
    wanted = wheel_matrix.requirements(chosen)
    assert wanted[0] == "peergraph[pyg,dgl]==1.2.3"
    assert "torch>=2.4" in wanted
    assert any(text.startswith("dgl") for text in wanted)
    newest = wheel_matrix.requirements(cells[2])
    assert newest == ["peergraph[pyg,dgl]==1.2.3"]
    oldest = wheel_matrix.requirements(cells[3])
    assert not any(text.startswith("dgl") for text in oldest)  # It has no wheels there.
    assert not chosen.passed
    chosen.found, chosen.outcomes = {"Python": "3.10.1"}, {"demo": "passed in 3 s"}
    assert chosen.passed
    assert "| 3.10 | oldest | Python 3.10.1 | demo: passed in 3 s | 0 |" in wheel_matrix.table(
        [chosen]
    )
    chosen.outcomes["DGL"] = "failed: it"
    assert not chosen.passed


def test_the_script_of_dgl_runs() -> None:
    pytest.importorskip("peergraph_dgl", exc_type=ImportError)
    exec(compile(wheel_matrix.DGL_SCRIPT, "dgl script", "exec"), {"__name__": "script"})
