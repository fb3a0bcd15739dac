"""A release says one version everywhere, and its scripts know the supported Pythons."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from release import make_wheels, old_systems, toolkit, wheel_matrix
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


def test_a_wheel_has_the_module_of_its_python_and_processor_alone(tmp_path: Path) -> None:
    suffix = ".cpython-311-aarch64-linux-gnu.so"
    own, other = f"peergraph/_C{suffix}", "peergraph/_C.cpython-311-x86_64-linux-gnu.so"
    for modules in ([own], [other], [own, other], []):
        wheel = tmp_path / f"{len(list(tmp_path.iterdir()))}.whl"
        with ZipFile(wheel, "w") as file:
            for name in ("peergraph/__init__.py", *modules):
                file.writestr(name, "")
        if modules == [own]:
            make_wheels.check_module(wheel, suffix)
        else:
            with pytest.raises(SystemExit, match=f"expected {own} alone"):
                make_wheels.check_module(wheel, suffix)


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
    packages = wheel_matrix.requirements(chosen)
    assert packages[0] == "peergraph[pyg,dgl]==1.2.3"
    assert "torch>=2.4" in packages
    assert any(text.startswith("dgl") for text in packages)
    newest = wheel_matrix.requirements(cells[2])
    assert newest == ["peergraph[pyg,dgl]==1.2.3"]
    oldest = wheel_matrix.requirements(cells[3])
    assert not any(text.startswith("dgl") for text in oldest)  # It has no wheels there.
    assert not chosen.passed
    chosen.installed, chosen.outcomes = {"Python": "3.10.1"}, {"demo": "passed in 3 s"}
    assert chosen.passed
    assert "| 3.10 | oldest | Python 3.10.1 | demo: passed in 3 s | 0 |" in wheel_matrix.table(
        [chosen]
    )
    chosen.outcomes["DGL"] = "failed: it"
    assert not chosen.passed


def recorder(path: Path, body: str = "") -> Path:
    """A program that writes its arguments, and what nvcc leaves to fatbinary, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "$@" "later:$PEERGRAPH_LATER_CODES" >> {path}.said\n{body}')
    path.chmod(0o755)
    return path.parent / f"{path.name}.said"


def test_machine_code_for_later_gpus_than_nvcc_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = recorder(tmp_path / "bin" / "nvcc-90")
    code = "-gencode=arch=compute_90,code=[sm_90,sm_100,sm_120,compute_90]"
    assert toolkit.nvcc(str(tmp_path), [code, "-c", "a.cu"]) == 0
    assert toolkit.nvcc(str(tmp_path), ["-arch=sm_80", "sm_10.cu"]) == 0
    assert said.read_text().splitlines() == [
        "-gencode=arch=compute_90,code=[sm_90,compute_90] -c a.cu later:100 120",
        "-arch=sm_80 sm_10.cu later:",
    ]
    monkeypatch.setenv(toolkit.LATER, "100 120")
    assembled = recorder(tmp_path / "bin" / "ptxas")
    written = recorder(tmp_path / "bin" / "fatbinary-90")
    images = ["--image3=kind=elf,sm=90,file=a.cubin", "--image3=kind=ptx,sm=90,file=a.ptx"]
    assert toolkit.fatbinary(str(tmp_path), ["-64", *images]) == 0
    assert re.findall(r"-arch=(\S+) -m64 (\S+)", assembled.read_text()) == [
        ("sm_100", "a.ptx"),
        ("sm_120", "a.ptx"),
    ]
    text = written.read_text()
    assert text.startswith(" ".join(["-64", *images]))
    assert re.findall(r"kind=elf,sm=(\d+)", text) == ["90", "100", "120"]
    # Without PTX there is nothing to make machine code of, and a failed assembler is an error.
    assert toolkit.fatbinary(str(tmp_path), images[:1]) == 0
    assert len(assembled.read_text().splitlines()) == 2
    recorder(tmp_path / "bin" / "ptxas", "exit 3\n")
    with pytest.raises(subprocess.CalledProcessError):
        toolkit.fatbinary(str(tmp_path), images)


def test_modules_link_the_library_of_an_older_system(tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    options = old_systems.link_options(tmp_path / "libraries")
    source = tmp_path / "module.cpp"
    source.write_text(
        "#include <cmath>\n#include <memory>\n#include <random>\n#include <thread>\n"
        'extern "C" double f(double x) {\n'
        "  auto y = std::make_shared<double>(std::exp(x) + std::random_device{}() * 0);\n"
        "  std::thread([y] { *y += 1; }).join();\n  return *y;\n}\n"
    )
    module = tmp_path / "module.so"
    flags = ["-O2", "-fPIC", "-shared", *options.split(), "-Wl,--no-undefined"]
    subprocess.run(["c++", source, "-o", module, *flags], check=True)
    versions = subprocess.run(["readelf", "-V", module], capture_output=True, text=True, check=True)
    newest = max(
        tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", versions.stdout)
    )
    assert newest <= (2, 28)
    assert "GLIBCXX" not in versions.stdout
    code = f"import ctypes; f = ctypes.CDLL({str(module)!r}).f; f.restype = ctypes.c_double\n"
    code += "print(f(ctypes.c_double(0)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == 2


def test_the_script_of_dgl_runs() -> None:
    pytest.importorskip("peergraph_dgl", exc_type=ImportError)
    exec(compile(wheel_matrix.DGL_SCRIPT, "dgl script", "exec"), {"__name__": "script"})
