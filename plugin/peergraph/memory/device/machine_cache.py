"""Files that store measurements of this machine."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from peergraph.atomic_write import write_atomically
from peergraph.cache_folder import cache_folder


def cache_file(name: str, parts: Sequence[str]) -> Path:
    """Returns ``<name>-<digest>.json`` in the cache's folder, with a digest of the parts and of the
    GPUs' driver.
    """
    key = hashlib.sha256("\n".join([*parts, _driver()]).encode()).hexdigest()[:16]
    return cache_folder() / f"{name}-{key}.json"


def identity(device: torch.device) -> str:
    """Returns a name that identifies a GPU, or the machine for the CPU."""
    if device.type == "cpu":
        return f"cpu of {os.uname().nodename}"
    properties = torch.cuda.get_device_properties(device)
    # The oldest supported torch lacks the property.
    return str(getattr(properties, "uuid", f"{os.uname().nodename} {device}"))


def host_reads_file(device: torch.device, world_size: int) -> Path:
    """Returns the file with the speeds of a GPU's reads of host memory while `world_size` ranks
    read it.
    """
    return cache_file("host-reads", [identity(device), str(world_size)])


def keep(path: Path, text: str) -> None:
    """Writes a measurement to a file of the cache; warns if the file cannot be written."""
    try:
        write_atomically(path, text)
    except OSError as error:
        warnings.warn(f"a measurement of this machine cannot be kept: {error}", stacklevel=2)


def _driver() -> str:
    version = Path("/proc/driver/nvidia/version")
    return version.read_text().splitlines()[0] if version.is_file() else ""
