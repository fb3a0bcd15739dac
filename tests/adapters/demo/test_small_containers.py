"""`peergraph` in a container as small as those of notebooks and CI services.

It has one processor, no /dev/shm (so multiprocessing has no locks), a home that cannot be written
and a temporary folder of 16 MB. Namespaces of mounts make it; where they are not allowed, tests
skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

pytest.importorskip("torch_geometric", reason="the demo needs torch-geometric")

CONTAINER = """
set -e
for name in dev home tmp; do mkdir -p "$1/$name"; done
mount -t tmpfs -o size=1m tmpfs "$1/dev"
for name in null zero full random urandom; do
  touch "$1/dev/$name"
  mount --bind "/dev/$name" "$1/dev/$name"
done
mount -t tmpfs -o ro tmpfs "$1/home"
mount -t tmpfs -o size=16m tmpfs "$1/tmp"
mount --rbind "$1/dev" /dev
export HOME="$1/home" TMPDIR="$1/tmp"
shift
exec taskset -c "$@"
"""
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")
READ = """
from pathlib import Path
from peergraph_demo.code_modules import find_modules, read_modules
import json
modules = find_modules([Path(json.__file__).parent])
print(len(modules), len(read_modules(modules, cpus=3)))
"""


@lru_cache
def has_namespaces() -> bool:
    if shutil.which("unshare") is None or shutil.which("taskset") is None:
        return False
    mount = [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/dev"]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


def run_in_container(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs ``python *command`` there."""
    if not has_namespaces():
        pytest.skip("namespaces of mounts are not allowed here")
    environment = dict(os.environ)
    environment.pop("XDG_CACHE_HOME", None)
    cpu = str(min(os.sched_getaffinity(0)))
    shell = [*UNSHARE, "bash", "-c", CONTAINER, "bash", str(folder), cpu, sys.executable]
    return subprocess.run(
        [*shell, *command], env=environment, capture_output=True, text=True, check=False
    )


def test_demo(tmp_path: Path) -> None:
    small = ["--data", "products", "--scale", "0.001", "--fanouts", "4,3", "--hidden", "16"]
    options = ["--device", "cpu", "--ranks", "2", "--epochs", "1"]
    done = run_in_container(tmp_path, "-m", "peergraph.cli", "demo", *small, *options)
    assert done.returncode == 0, done.stderr
    assert "shared with 2 ranks" in done.stdout
    assert "epoch 1: loss" in done.stdout


def test_code_is_read_without_locks(tmp_path: Path) -> None:
    done = run_in_container(tmp_path, "-c", READ)
    assert done.returncode == 0, done.stderr
    count, parsed = map(int, done.stdout.split())
    assert count == parsed > 2


def test_info_says_what_loaders_lack(tmp_path: Path) -> None:
    done = run_in_container(tmp_path, "-m", "peergraph.cli", "info")
    assert done.returncode == 0, done.stderr
    assert "  CPUs              1\n" in done.stdout
    assert "/dev/shm has 0.0 MiB free: stores need none of it, but loaders" in done.stdout
