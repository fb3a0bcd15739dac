"""Builds peergraph's editable wheel into a folder with the packages of this interpreter.

`make` calls it. What CMake and the compiler say goes to a log, which is printed if they fail; on a
terminal a line counts the files.
"""

import re
import subprocess
import sys
from pathlib import Path
from time import monotonic

import build_backend

HERE = Path(__file__).parent
BUILD = "import sys; sys.path.insert(0, sys.argv[2]); import build_backend as backend; "
BUILD += "backend.build_editable(sys.argv[1])"
PROGRESS = re.compile(r"\[(\d+/\d+)\]")


def install_compiler() -> None:
    """The CUDA compiler from pip, where the backend asks for it."""
    requirements = build_backend.get_requires_for_build_editable()
    packages = [package for package in requirements if package in build_backend.NVCC_PACKAGES]
    if packages:
        print("installing a CUDA compiler ...", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile"]
        subprocess.run([*pip, *packages], check=True)


def build(folder: Path) -> int:
    """Returns the exit status of the build."""
    print("compiling the C++ core (a minute or two on 2 cores) ...", flush=True)
    start, log, on_terminal = monotonic(), [], sys.stdout.isatty()
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", BUILD, str(folder), str(HERE)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=HERE.parents[1],
    )
    for line in process.stdout or ():
        log.append(line)
        progress = PROGRESS.match(line)
        if progress and on_terminal:
            print(f"\rcompiling {progress[1]}", end=" ", flush=True)
    status = process.wait()
    (folder / "compile.log").write_text("".join(log))
    if on_terminal:
        print("\r", end="")
    said = "".join(log) if status else f"compiled the C++ core in {monotonic() - start:.0f} s\n"
    print(said, end="", flush=True)
    return status


if __name__ == "__main__":
    target = Path(sys.argv[1]).absolute()
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("*.whl"):
        old.unlink()
    install_compiler()
    sys.exit(build(target))
