"""GPUs: their properties and links, and whether the compiled code runs on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from peergraph.memory.region.peer_access import refused_gpus

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
    """Returns whether this machine has an NVIDIA GPU, usable or not."""
    return Path("/dev/nvidiactl").exists()


def find_gpus() -> list[Gpu]:
    """Returns the GPUs that torch can use. Creates a CUDA context on each, to read free memory."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [describe(index) for index in range(count)]


def describe(index: int) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    try:
        free = torch.cuda.mem_get_info(index)[0]
    except RuntimeError:  # there is not even memory for a context
        free = 0
    capability = f"{properties.major}.{properties.minor}"
    uuid = str(getattr(properties, "uuid", ""))  # the oldest supported torch lacks it
    return Gpu(properties.name, capability, properties.total_memory, free, uuid)


@contextmanager
def _nvml() -> Iterator[Any]:
    """Yields the module `pynvml`, initialised; None if nvidia-ml-py or the driver is missing."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def driver_version() -> str | None:
    """Returns the version of the NVIDIA driver; None if nvidia-ml-py or the driver is missing."""
    with _nvml() as nvml:
        return None if nvml is None else str(nvml.nvmlSystemGetDriverVersion())


def link_matrix(gpus: list[Gpu]) -> list[list[str]]:
    """Returns the link from GPU i to GPU j: "self", "none", or the kind of link.

    The kinds are "NVLink", the kinds of `nvidia-smi topo` for PCIe (PIX, PXB, PHB, NODE, SYS), and
    "peer" if nvidia-ml-py is missing.
    """
    count = len(gpus)
    links = [["peer"] * count for _ in range(count)]
    refused = refused_gpus(count)
    with _nvml() as nvml:
        for i, j in product(range(count), repeat=2):
            if i == j:
                links[i][j] = "self"
            elif (min(i, j), max(i, j)) in refused:
                links[i][j] = "none"
            elif nvml is not None:
                links[i][j] = _kind(nvml, gpus[i], gpus[j])
    return links


def _kind(nvml: Any, first: Gpu, second: Gpu) -> str:
    levels = {
        nvml.NVML_TOPOLOGY_SINGLE: "PIX",
        nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        nvml.NVML_TOPOLOGY_NODE: "NODE",
        nvml.NVML_TOPOLOGY_SYSTEM: "SYS",
    }
    try:
        pair = [nvml.nvmlDeviceGetHandleByUUID(f"GPU-{gpu.uuid}") for gpu in (first, second)]
        if nvml.nvmlDeviceGetP2PStatus(*pair, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0:
            return "NVLink"
        return levels.get(nvml.nvmlDeviceGetTopologyCommonAncestor(*pair), "peer")
    except nvml.NVMLError:  # not supported by this GPU or driver
        return "peer"


def runs_on(architectures: str, capability: str) -> bool:
    """Returns whether code compiled for CMake's list of `architectures` runs on a GPU.

    `90-real` is machine code: it runs on GPUs of its major version, from its minor version on. `90`
    also contains PTX, which later GPUs translate. `90-virtual` contains PTX only.
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
