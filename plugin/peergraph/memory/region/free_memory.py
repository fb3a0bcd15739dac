"""Free memory of the host and of GPUs, and the granularity of allocations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from peergraph.environment import read_variable

GPU_GRANULE = 2 << 20
"""The driver shares GPU memory in blocks of this many bytes, so a region takes whole blocks."""
_PAGE = 4096


def granted_bytes(sizes: Iterable[int], device_type: str) -> int:
    """The bytes that allocations of these sizes take, rounded up by the driver or the system."""
    granule = GPU_GRANULE if device_type == "cuda" else _PAGE
    return sum(-(-size // granule) * granule for size in sizes)


def free_gpu_memory(device: torch.device) -> int:
    """Bytes that can be allocated on a GPU, after torch has returned its cached memory."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def free_host_memory(root: Path = Path("/")) -> int:
    """Bytes that this process can still allocate, by the machine's and its control groups' limits.

    The environment variable PEERGRAPH_HOST_MEMORY sets it where memory grows on demand.

    Args:
        root: where /proc and /sys are found.

    Raises:
        ValueError: that variable is no number.
    """
    announced = read_variable("PEERGRAPH_HOST_MEMORY", _parse_bytes, "a number of bytes", None)
    if announced is not None:
        return announced
    rooms = [_read_number(limit) - _kept(limit.parent) for limit in _limit_files(root)]
    return max(0, min([available_memory(root), *rooms]))


def _parse_bytes(text: str) -> int | None:
    if not text.isdecimal():
        raise ValueError
    return int(text)


def available_memory(root: Path) -> int:
    """Bytes that the machine has left, page cache that can be dropped among them."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    kilobytes = dict(line.split(":", 1) for line in lines)["MemAvailable"]
    return int(kilobytes.split()[0]) * 1024


def cgroup_memory(root: Path) -> int | None:
    """The tightest memory limit of this process's control groups, version 2 or 1."""
    return min(map(_read_number, _limit_files(root)), default=None)


def _limit_files(root: Path) -> Iterator[Path]:
    """Files with the limits that are set."""
    mount = root / "sys/fs/cgroup"
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        is_memory = "memory" in controllers.split(",")
        if number != "0" and not is_memory:
            continue
        base = mount / "memory" if is_memory else mount
        name = "memory.limit_in_bytes" if is_memory else "memory.max"
        group = Path(path.lstrip("/"))
        # In a container the path may be outside the mount; the mount's root is not.
        for file in (base / parent / name for parent in (group, *group.parents)):
            # Version 1 writes a number near 2^63 for "no limit".
            if file.is_file() and 0 <= _read_number(file) < 1 << 62:
                yield file


def _kept(group: Path) -> int:
    """Bytes that a control group uses and cannot drop."""
    used = max(_read_number(group / name) for name in ("memory.current", "memory.usage_in_bytes"))
    pages = group / "memory.stat"
    lines = pages.read_text().splitlines() if pages.is_file() else []
    counts = dict(line.split() for line in lines)
    files = ("active_file", "inactive_file")
    # Version 1 counts the groups below apart.
    cached = sum(int(counts.get(f"total_{name}", counts.get(name, 0))) for name in files)
    return max(0, used - cached)


def _read_number(file: Path) -> int:
    """A file's number; -1 for a word, or no file."""
    text = file.read_text().strip() if file.is_file() else ""
    return int(text) if text.isdigit() else -1
