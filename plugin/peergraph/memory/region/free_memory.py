"""Free memory of the host and of GPUs, and the granularity of allocations."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from peergraph.control_groups import limit_files
from peergraph.environment import read_variable
from peergraph.number_arguments import check_number

GPU_GRANULE = 2 << 20
"""The driver shares GPU memory in blocks of this many bytes, so a region takes whole blocks."""
_PAGE = 4096
_MANY_ROWS, _MOST_ROWS = 1 << 26, 1 << 48


def granted_bytes(sizes: Iterable[int], device_type: str) -> int:
    """Returns the bytes that allocations take, with the rounding of the driver or the system."""
    granule = GPU_GRANULE if device_type == "cuda" else _PAGE
    return sum(-(-size // granule) * granule for size in sizes)


def check_count(name: str, value: object, device: torch.device | None = None) -> None:
    """Raises an error for a number of rows of which not even 8 bytes each can be allocated.

    Args:
        name: the name of the argument, for errors.
        value: the number of rows.
        device: where they are to be; None: on the host.

    Raises:
        TypeError: not an integer.
        ValueError: negative, or more than 2^48.
        MemoryError: more than the host has memory for.
    """
    check_number(name, value, 0, _MOST_ROWS)
    rows = operator.index(value)  # type: ignore[arg-type]
    if rows < _MANY_ROWS or (device is not None and device.type != "cpu"):
        return
    free = free_host_memory()
    if rows * 8 > free:
        raise MemoryError(f"{name}: {rows} rows need at least {rows * 8} bytes of the host's "
                          f"memory, {free} are available")  # fmt: skip


def free_gpu_memory(device: torch.device) -> int:
    """Returns the bytes that can be allocated on a GPU, after torch has freed its cached memory."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def free_host_memory(root: Path = Path("/")) -> int:
    """Returns the bytes that this process can still allocate within the limits of the machine and
    of its control groups.

    On systems whose memory grows on demand the environment variable PEERGRAPH_HOST_MEMORY sets the
    number.

    Args:
        root: the folder that contains /proc and /sys.

    Raises:
        ValueError: the variable is not a number.
    """
    from_variable = read_variable("PEERGRAPH_HOST_MEMORY", _parse_bytes, "a number of bytes", None)
    if from_variable is not None:
        return from_variable
    left = [_read_number(limit) - _unevictable_bytes(limit.parent) for limit in _limit_files(root)]
    return max(0, min([available_memory(root), *left]))


def _parse_bytes(text: str) -> int | None:
    if not text.isdecimal():
        raise ValueError
    return int(text)


def available_memory(root: Path) -> int:
    """Returns the bytes that the machine has left, including page cache that can be dropped."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    kilobytes = dict(line.split(":", 1) for line in lines)["MemAvailable"]
    return int(kilobytes.split()[0]) * 1024


def cgroup_memory(root: Path) -> int | None:
    """Returns the smallest memory limit of this process's control groups (version 2 or 1) in bytes;
    None without a limit.
    """
    return min(map(_read_number, _limit_files(root)), default=None)


def _limit_files(root: Path) -> Iterator[Path]:
    """Yields the files of the control groups that contain a memory limit."""
    for file in limit_files(root, "memory", "memory.max", "memory.limit_in_bytes"):
        # Version 1 writes a number near 2^63 for "no limit".
        if 0 <= _read_number(file) < 1 << 62:
            yield file


def _unevictable_bytes(group: Path) -> int:
    """Returns the bytes that a control group uses and cannot drop."""
    used = max(_read_number(group / name) for name in ("memory.current", "memory.usage_in_bytes"))
    pages = group / "memory.stat"
    lines = pages.read_text().splitlines() if pages.is_file() else []
    counts = dict(line.split() for line in lines)
    files = ("active_file", "inactive_file")
    # Version 1 has separate counts that include the groups below.
    cached = sum(int(counts.get(f"total_{name}", counts.get(name, 0))) for name in files)
    return max(0, used - cached)


def _read_number(file: Path) -> int:
    """Returns the number in a file; -1 if the file contains a word or does not exist."""
    text = file.read_text().strip() if file.is_file() else ""
    return int(text) if text.isdigit() else -1
