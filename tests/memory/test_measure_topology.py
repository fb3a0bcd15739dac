"""Measuring links: on the CPU all memory is the machine's, and the steps are the same."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from peergraph.memory import Group
from peergraph.memory.topology.measure import (
    ROW_BYTES,
    cached_topology,
    known_topology,
    measure_topology,
)
from peergraph.memory.topology.topology import Topology
from peergraph.testing import run_ranks
from tests.conftest import NUM_GPUS
from tests.places import cpu_and_gpus


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def assert_plausible(topology: Topology, count: int) -> None:
    assert topology.num_gpus == count
    assert topology.is_fully_linked
    assert [width for width, _ in topology.rows] == list(ROW_BYTES)
    for rates in (topology.bulk, *(rates for _, rates in topology.rows)):
        assert all(value > 0 for row in rates.bandwidth for value in row)
        assert all(value > 0 for value in rates.host)
        assert all((value > 0) == (count > 1) for value in rates.ingress)
    assert all(0 < value < 1 for row in topology.latency for value in row)
    assert all(size > 0 for size in topology.memory)
    assert len(topology.host_reads) == len(topology.caches) == count


def _measure(device: str, folder: str) -> None:
    os.environ["XDG_CACHE_HOME"] = folder
    group = Group.current(device=device)
    assert cached_topology(group) is None
    topology = measure_topology(group)
    assert_plausible(topology, group.world_size)
    assert all(other == topology for other in group.all_gather(topology))
    # Floats survive JSON, so the cache gives back the same values.
    assert measure_topology(group) == topology
    assert cached_topology(group) == topology


def test_one_rank(device: object, tmp_path: Path) -> None:
    _measure(str(device), str(tmp_path))
    names = sorted(path.name.split("-")[0] for path in (tmp_path / "peergraph").iterdir())
    # On a GPU also by which way it reads the host.
    assert names == (["topology"] if str(device) == "cpu" else ["host", "topology"])


def test_known_without_a_group() -> None:
    devices = [torch.device("cuda", i) for i in range(NUM_GPUS)] or [torch.device("cpu")]
    assert known_topology() is None
    if len(devices) == 1:
        assert measure_topology(Group.current(device=devices[0])) == known_topology()


@cpu_and_gpus(2)
def test_two_ranks(device_type: str, tmp_path: Path) -> None:
    run_ranks(_measure, 2, device_type, str(tmp_path), device=device_type)


def test_a_cache_that_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    group = Group.current(device="cpu")
    with pytest.warns(UserWarning, match="cannot be kept: .*No space left on device"):
        measure_topology(group)
    assert list((tmp_path / "peergraph").iterdir()) == []
    (tmp_path / "peergraph").rmdir()
    (tmp_path / "peergraph").touch()
    with pytest.warns(UserWarning, match="cannot be kept"):
        measure_topology(group)
    assert cached_topology(group) is None


def test_force_and_a_broken_cache(tmp_path: Path) -> None:
    group = Group.current(device="cpu")
    measure_topology(group)
    (file,) = (tmp_path / "peergraph").iterdir()
    file.write_text("{}")
    assert cached_topology(group) is None
    topology = measure_topology(group, force=True)
    assert Topology.from_json(file.read_text()) == topology
