"""Puts a compiler of CUDA 12 together from package registries, for wheels that older drivers run.

    python -m release.toolkit FOLDER --deb nvidia-cuda-toolkit_12.4.131~12.4.1-2_amd64.deb
    CUDACXX=FOLDER/bin/nvcc make wheels

NVIDIA's own toolkit 12.9 needs none of this: name its nvcc in CUDACXX. PyPI has the assembler, the
headers and the runtime of CUDA 12, but no nvcc. Debian 13 has nvcc 12.4 (`apt-get download
nvidia-cuda-toolkit`, component non-free), which does not know GPUs of compute capability 10.0 and
later; the assembler of 12.9 does. So `nvcc` and `fatbinary` are two scripts here: the first takes
later GPUs out of what nvcc is told, the second assembles their machine code from the newest PTX.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# Headers of the release of nvcc; all else of the last release that runs with drivers from 525 on.
PACKAGES = (
    ("nvidia-cuda-runtime-cu12==12.4.127", "include"),
    ("nvidia-cuda-nvcc-cu12==12.4.131", "include"),
    ("nvidia-cuda-cccl-cu12==12.9.27", "include"),
    ("nvidia-cuda-runtime-cu12==12.9.79", "lib"),
    ("nvidia-cuda-nvcc-cu12==12.9.86", "bin"),
)
TOOLS = ("cudafe++", "fatbinary", "nvlink", "bin2c", "cuobjdump", "nvdisasm")
LAST_OF_NVCC = 90
PROFILE = """\
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64"
"""
SCRIPT = """\
#!{python}
import sys
sys.path.insert(0, {root!r})
from release.toolkit import {function}
sys.exit({function}({folder!r}, sys.argv[1:]))
"""
LATER = "PEERGRAPH_LATER_CODES"


def nvcc(folder: str, arguments: Sequence[str]) -> int:
    """Runs nvcc; leaves code of GPUs that it does not know to `fatbinary`."""
    codes = {int(code) for text in arguments for code in re.findall(r"\bsm_(\d+)\b", text)}
    later = sorted(code for code in codes if code > LAST_OF_NVCC)
    own = [re.sub(rf"\bsm_({'|'.join(map(str, later))})\b,?", "", text) for text in arguments]
    command = [f"{folder}/bin/nvcc-{LAST_OF_NVCC}", *(own if later else arguments)]
    return subprocess.call(command, env={**os.environ, LATER: " ".join(map(str, later))})


def fatbinary(folder: str, arguments: Sequence[str]) -> int:
    """Runs fatbinary, with machine code of later GPUs made of the PTX that is in it."""
    command = [f"{folder}/bin/fatbinary-{LAST_OF_NVCC}", *arguments]
    sources = [text for text in arguments if text.startswith("--image3=kind=ptx")]
    with tempfile.TemporaryDirectory() as place:
        for code in os.environ.get(LATER, "").split() if sources else ():
            ptx, cubin = sources[-1].partition("file=")[2], f"{place}/sm_{code}.cubin"
            ptxas = [f"{folder}/bin/ptxas", f"-arch=sm_{code}", "-m64", ptx, "-o", cubin]
            subprocess.run(ptxas, check=True)
            command.append(f"--image3=kind=elf,sm={code},file={cubin}")
        return subprocess.call(command)


def assemble(folder: Path, deb: Path) -> None:
    """Fills the folder. Raises subprocess.CalledProcessError."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("bin", "nvvm/bin", "nvvm/libdevice", "include", "lib64"):
        (folder / name).mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["dpkg", "-x", deb, place], check=True)
        tools, own = Path(place, "usr/bin"), Path(place, "usr/lib/nvidia-cuda-toolkit")
        for name in TOOLS:
            shutil.copy2(tools / name, folder / "bin" / name)
        shutil.copy2(own / "bin" / "nvcc", folder / "bin" / f"nvcc-{LAST_OF_NVCC}")
        shutil.copytree(own / "bin" / "crt", folder / "bin" / "crt")
        shutil.copy2(own / "bin" / "cicc", folder / "nvvm" / "bin")
        shutil.copytree(own / "libdevice", folder / "nvvm" / "libdevice", dirs_exist_ok=True)
    for requirement, part in PACKAGES:
        with tempfile.TemporaryDirectory() as place:
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile"]
            subprocess.run([*pip, "--target", place, requirement], check=True)
            [source] = Path(place, "nvidia").glob(f"*/{part}")
            target = folder / {"lib": "lib64"}.get(part, part)
            shutil.copytree(source, target, dirs_exist_ok=True)
    for shared in (folder / "lib64").glob("*.so*"):
        shared.unlink()
    # For kernels that start kernels. There are none, and nvlink reads no release after its own.
    (folder / "lib64" / "libcudadevrt.a").write_bytes(b"!<arch>\n")
    (folder / "bin" / "fatbinary").rename(folder / "bin" / f"fatbinary-{LAST_OF_NVCC}")
    (folder / "bin" / "nvcc.profile").write_text(PROFILE)
    root = str(Path(__file__).parent.parent)
    for name in ("nvcc", "fatbinary"):
        text = SCRIPT.format(python=sys.executable, root=root, function=name, folder=str(folder))
        (folder / "bin" / name).write_text(text)
    for tool in [*(folder / "bin").iterdir(), folder / "nvvm" / "bin" / "cicc"]:
        if tool.is_file():
            tool.chmod(0o755)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m release.toolkit", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path)
    parser.add_argument("--deb", type=Path, required=True)
    options = parser.parse_args()
    assemble(options.folder.resolve(), options.deb)
    return 0


if __name__ == "__main__":
    sys.exit(main())
