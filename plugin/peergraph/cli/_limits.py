"""The machine's limits that a store in shared memory meets."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

Limits = dict[str, int | None]  # None: no limit


def host_limits(root: Path = Path("/")) -> Limits:
    """Memory in bytes, and counts; `root` is where /proc, /sys and /dev are found."""
    shm = root / "dev/shm"
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "memory_available": available_memory(root),
        "cgroup_memory": cgroup_memory(root),
        "shm_free": shutil.disk_usage(shm).free if shm.is_dir() else 0,
        "memlock": soft_limit(resource.RLIMIT_MEMLOCK),
        "open_files": soft_limit(resource.RLIMIT_NOFILE),
    }


def soft_limit(which: int) -> int | None:
    limit = resource.getrlimit(which)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def available_memory(root: Path) -> int:
    lines = (root / "proc/meminfo").read_text().splitlines()
    kilobytes = dict(line.split(":", 1) for line in lines)["MemAvailable"]
    return int(kilobytes.split()[0]) * 1024


def cgroup_memory(root: Path) -> int | None:
    """The tightest memory limit of this process's control groups, version 2 or 1."""
    mount = root / "sys/fs/cgroup"
    files = []
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        is_memory = "memory" in controllers.split(",")
        if number != "0" and not is_memory:
            continue
        base = mount / "memory" if is_memory else mount
        name = "memory.limit_in_bytes" if is_memory else "memory.max"
        group = Path(path.lstrip("/"))
        # In a container the path may lie outside of what is mounted; the mount's root does not.
        files += [base / parent / name for parent in (group, *group.parents)]
    texts = [file.read_text().strip() for file in files if file.is_file()]
    values = [int(text) for text in texts if text.isdigit()]
    # Version 1 writes a number near 2^63 for "no limit".
    return min((value for value in values if value < 1 << 62), default=None)
