"""Limits that Linux control groups set for this process, as containers do."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def usable_cpus(root: Path = Path("/")) -> int:
    """Returns how many processors this process can keep busy, at least 1.

    These are the processors that it may run on, and no more than its control groups pay for:
    `docker run --cpus=1` leaves all processors of the machine visible.

    Args:
        root: the folder that contains /proc and /sys.
    """
    counts = [len(os.sched_getaffinity(0))]
    for file in limit_files(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        quota, *period = file.read_text().split()
        if quota.isdigit():  # else "max", or -1 in version 1
            period = period or [(file.parent / "cpu.cfs_period_us").read_text()]
            counts.append(math.ceil(int(quota) / int(period[0])))
    return max(1, min(counts))


def limit_files(root: Path, controller: str, name: str, first_name: str) -> Iterator[Path]:
    """Yields the files that hold a limit, one for each control group that this process is in.

    Args:
        root: the folder that contains /proc and /sys.
        controller: as in "memory".
        name, first_name: of the file, in version 2 and in version 1 of control groups.
    """
    mount = root / "sys/fs/cgroup"
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        is_first_version = controller in controllers.split(",")
        if number != "0" and not is_first_version:
            continue
        base = mount / controller if is_first_version else mount
        # In a container the path may be outside the mount; the mount's root is not.
        group = Path(path.lstrip("/"))
        for parent in (group, *group.parents):
            file = base / parent / (first_name if is_first_version else name)
            if file.is_file():
                yield file
