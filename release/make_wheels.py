"""Makes the wheels of a release: for each Python one, with the CPU and the CUDA part.

    make wheels                                      # or: .venv/bin/python -m release.make_wheels
    make wheels ARGS="3.12 --python 3.12=/opt/python3.12/bin/python"

The core, which knows no Python, is compiled once; bindings are compiled for each Python. The CUDA
runtime and the library of C++ are linked in, so a wheel needs only the library of C, as old systems
have it (old_systems.py). auditwheel names the wheel by the oldest of them. Environment variables:

    CUDACXX          nvcc; one of CUDA 12 for drivers from 525 on (toolkit.py), else from 580 on
    CUDAARCHS        GPU architectures; by default those of wheels: machine code for compute
                     capability 7.5, 8.x, 9.0, 10.x and 12.x, and PTX for later GPUs
    PEERGRAPH_CUDA   OFF makes wheels without the CUDA part

A wheel of more than 100 MB, which package indexes do not take, is an error.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from zipfile import ZipFile

from release.interpreters import interpreter
from release.old_systems import link_options

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "wheels"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MAX_BYTES = 100_000_000
ARCHITECTURES = "wheel"
# What scikit-build-core takes from here is the same for all Pythons.
TOOLS = ("scikit-build-core", "pybind11", "cmake", "ninja")


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Prints and runs a command. Raises subprocess.CalledProcessError."""
    print("+", *command, flush=True)
    subprocess.run(command, cwd=ROOT, env=env, check=True)


def use_compilers(machine: str) -> None:
    """Sets variables for all builds: GPU architectures, nvcc, libraries, ccache if it is here."""
    if machine != platform.machine():
        os.environ["PEERGRAPH_CUDA"] = "OFF"
        os.environ["CXX"] = f"{machine}-linux-gnu-g++"
        system = f"-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR={machine}"
        os.environ["CMAKE_ARGS"] = f"{os.environ.get('CMAKE_ARGS', '')} {system}"
    os.environ.setdefault("PEERGRAPH_CUDA", "ON")
    os.environ.setdefault("CUDAARCHS", ARCHITECTURES)
    os.environ["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")
    os.environ.pop("PIP_BUILD_CONSTRAINT", None)  # pip refuses it where it isolates no build
    if "LDFLAGS" not in os.environ:
        os.environ["LDFLAGS"] = link_options(BUILD / "libraries", machine)
    sys.path.append(str(ROOT / "csrc" / "cmake"))
    backend = import_module("build_backend")
    if backend.wants_pip_nvcc():
        import_module("make_editable").install_compiler()
        backend.use_pip_nvcc()
        os.environ["PEERGRAPH_PIP_NVCC"] = "0"  # builds take the compiler that CUDACXX names
    if shutil.which("ccache"):
        for language in ("CXX", "CUDA"):
            os.environ.setdefault(f"CMAKE_{language}_COMPILER_LAUNCHER", "ccache")
        os.environ.setdefault("CCACHE_BASEDIR", str(ROOT))
        os.environ.setdefault("CCACHE_NOHASHDIR", "1")


def make_core(machine: str) -> Path:
    """Compiles the core, and returns its archive."""
    pybind11 = import_module("pybind11").get_cmake_dir()
    folder = BUILD / f"core-{machine}"
    run(
        *("cmake", "-S", "csrc", "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"),
        f"-DPEERGRAPH_CUDA={os.environ['PEERGRAPH_CUDA']}",
        "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON",  # as .ci/run has it
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11}",
        *os.environ.get("CMAKE_ARGS", "").split(),
    )
    run("cmake", "--build", folder, "--target", "peergraph_core")
    return folder / "libpeergraph_core.a"


def make_wheel(python: str, core: Path, machine: str) -> Path:
    """Builds a wheel for the tag `linux` with the interpreter `python`, for any processor."""
    version = subprocess.run(
        [python, "-c", "import sys; print('{}.{}'.format(*sys.version_info[:2]))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    place = BUILD / f"python{version}"
    if not (place / "bin" / "pip").exists():
        run(python, "-m", "venv", place)
        run(place / "bin" / "python", "-m", "pip", "install", "-q", "--upgrade", "pip")
    own = place / "bin" / "python"
    run(own, "-m", "pip", "install", "-q", *TOOLS)
    wheels = place / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # Of this step alone: pip installs tools for the processor that Python names.
    variables = {"_PYTHON_HOST_PLATFORM": f"linux-{machine}", "PATH": path}
    suffix = f".cpython-{version.replace('.', '')}-{machine}-linux-gnu.so"
    run(
        *(own, "-m", "pip", "wheel", "-q", ".", "--no-deps", "--no-build-isolation", "-w", wheels),
        *("-C", f"build-dir={place / machine}", "-C", f"cmake.define.PEERGRAPH_CORE={core}"),
        # pybind11 asks the interpreter that it runs with, which is of this machine.
        *("-C", f"cmake.define.PYTHON_MODULE_EXTENSION={suffix}"),
        env=os.environ | variables,
    )
    wheel = next(wheels.glob("peergraph-*.whl"))
    check_module(wheel, suffix)
    return wheel


def check_module(wheel: Path, suffix: str) -> None:
    """Raises SystemExit if the wheel has another module than the one that its Python imports."""
    modules = [name for name in ZipFile(wheel).namelist() if name.endswith(".so")]
    if modules != [f"peergraph/_C{suffix}"]:
        raise SystemExit(
            f"{wheel.name} has the modules {', '.join(modules) or '(none)'}, expected "
            f"peergraph/_C{suffix} alone: is one of another build in plugin/peergraph?"
        )


def repair(wheel: Path, folder: Path, machine: str) -> Path:
    """Has auditwheel name the wheel by the system that it needs; returns the path in `folder`."""
    staged = BUILD / "repaired"
    shutil.rmtree(staged, ignore_errors=True)
    run("auditwheel", "repair", "--wheel-dir", staged, wheel)
    [repaired] = staged.glob("*.whl")
    if repaired.stat().st_size > MAX_BYTES:
        raise SystemExit(
            f"{repaired.name} has {repaired.stat().st_size / 1e6:.0f} MB, more than package "
            f"indexes take ({MAX_BYTES / 1e6:.0f} MB): name fewer architectures in CUDAARCHS"
        )
    run("auditwheel", "show", repaired)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{'-'.join(repaired.name.split('-')[:3])}-*{machine}.whl"):
        old.unlink()
    return Path(shutil.move(repaired, folder / repaired.name))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m release.make_wheels", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(PYTHONS)}")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", action="append", default=[], metavar="VERSION=PATH")
    parser.add_argument("--machine", default=platform.machine(), help="the processor")
    options = parser.parse_args(arguments)
    for version in options.versions:
        if version not in PYTHONS:
            parser.error(f"wheels are for Python {', '.join(PYTHONS)}, got {version}")
    interpreters = [interpreter(version, options.python) for version in options.versions or PYTHONS]
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    use_compilers(options.machine)
    core = make_core(options.machine)
    wheels = [
        repair(make_wheel(python, core, options.machine), options.folder, options.machine)
        for python in interpreters
    ]
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 1e6:6.1f} MB  {wheel}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
