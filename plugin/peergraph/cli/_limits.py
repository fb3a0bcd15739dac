"""Limits of the machine that concern a store in shared memory."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

from peergraph.control_groups import usable_cpus
from peergraph.memory.region.free_memory import available_memory, cgroup_memory

Limits = dict[str, int | None]  # None: no limit


def host_limits(root: Path = Path("/")) -> Limits:
    """Returns memory in bytes, and counts. `root` is the folder with /proc, /sys and /dev."""
    shm = root / "dev/shm"
    return {
        "cpus": usable_cpus(root),
        "memory_available": available_memory(root),
        "cgroup_memory": cgroup_memory(root),
        "shm_free": shutil.disk_usage(shm).free if shm.is_dir() else 0,
        "memlock": soft_limit(resource.RLIMIT_MEMLOCK),
        "open_files": soft_limit(resource.RLIMIT_NOFILE),
    }


def soft_limit(which: int) -> int | None:
    limit = resource.getrlimit(which)[0]
    return None if limit == resource.RLIM_INFINITY else limit
