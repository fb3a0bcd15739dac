"""GPUs: what they are, how they are linked, and whether the compiled code fits them."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

# The oldest driver that runs code of each CUDA release.
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


@dataclass
class Gpu:
    name: str
    capability: str
    memory: int
    memory_free: int
    uuid: str


def has_device_file() -> bool:
    """Whether this machine has an NVIDIA GPU, usable or not."""
    return Path("/dev/nvidiactl").exists()


def find_gpus() -> list[Gpu]:
    """The GPUs that torch can use. Makes a CUDA context on each, to ask for its free memory."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [describe(index) for index in range(count)]


def describe(index: int) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    try:
        free = torch.cuda.mem_get_info(index)[0]
    except RuntimeError:  # not even a context fits
        free = 0
    capability = f"{properties.major}.{properties.minor}"
    uuid = str(getattr(properties, "uuid", ""))  # not in the oldest torch
    return Gpu(properties.name, capability, properties.total_memory, free, uuid)


def nvidia_smi(*arguments: str) -> str:
    """What nvidia-smi prints; nothing where it is missing or fails."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout if process.returncode == 0 else ""


def driver_version() -> str | None:
    lines = nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader").split()
    return lines[0] if lines else None


def link_matrix(gpus: list[Gpu]) -> list[list[str]]:
    """How GPU i reaches GPU j: "self", the link's kind, "peer" where it is unknown, or "none"."""
    kinds = parse_topology(nvidia_smi("topo", "-m"))
    rows = nvidia_smi("--query-gpu=index,uuid", "--format=csv,noheader").splitlines()
    index_of = {}
    for row in rows:
        index, _, uuid = row.partition(", ")
        index_of[uuid.removeprefix("GPU-")] = int(index)

    def link(i: int, j: int) -> str:
        if i == j:
            return "self"
        if not torch.cuda.can_device_access_peer(i, j):
            return "none"
        pair = (index_of.get(gpus[i].uuid, -1), index_of.get(gpus[j].uuid, -1))
        return kinds.get(pair, "peer")

    return [[link(i, j) for j in range(len(gpus))] for i in range(len(gpus))]


def parse_topology(text: str) -> dict[tuple[int, int], str]:
    """The kinds of links between GPUs in the table of `nvidia-smi topo -m` (NV18, PIX, SYS...)."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    rows = [line.split() for line in plain.splitlines() if re.match(r"\s*GPU\d", line)]
    if not rows:
        return {}
    header = [name for name in rows[0] if re.fullmatch(r"GPU\d+", name)]
    kinds = {}
    for name, *cells in rows[1:]:
        for column, kind in zip(header, cells, strict=False):
            kinds[int(name[3:]), int(column[3:])] = kind
    return kinds


def runs_on(architectures: str, capability: str) -> bool:
    """Whether code compiled for CMake's list of `architectures` runs on a GPU.

    `90-real` is machine code: it runs on its major version from its minor version on; `90` has
    PTX beside it, which later GPUs translate; `90-virtual` is PTX only.
    """
    major, minor = (int(part) for part in capability.split("."))
    for entry in architectures.split():
        number, _, kind = entry.partition("-")
        digits = re.match(r"\d+", number)
        if digits is None:  # native, all, all-major: chosen for this machine, or for every GPU
            return True
        built = divmod(int(digits[0]), 10)
        if kind != "virtual" and built[0] == major and built[1] <= minor:
            return True
        if kind != "real" and built <= (major, minor):
            return True
    return False
