"""Pages of host memory on NUMA nodes, as the system says where they will lie."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from peergraph.memory.region.numa import numa_node, place_pages
from peergraph.memory.region.parts import HostPart

_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}
_OF_ADDRESS = 2


def _policy(address: int) -> tuple[int, int]:
    """The NUMA policy of the page at an address, and its nodes as a bit mask."""
    mode, mask = ctypes.c_int(), (ctypes.c_ulong * 16)()
    failed = ctypes.CDLL(None, use_errno=True).syscall(
        ctypes.c_long(_GET_MEMPOLICY[platform.machine()]),
        ctypes.byref(mode),
        mask,
        ctypes.c_ulong(1024),
        ctypes.c_void_p(address),
        ctypes.c_ulong(_OF_ADDRESS),
    )
    if failed:
        pytest.skip(f"get_mempolicy: {os.strerror(ctypes.get_errno())}")
    return mode.value, mask[0]


def test_pages() -> None:
    cpu = torch.device("cpu")
    plain, _, fd = HostPart.create(1 << 16, cpu, None)
    os.close(fd)
    assert _policy(plain.address)[0] == 0
    placed, _, fd = HostPart.create(1 << 16, cpu, None, {0})
    os.close(fd)
    if _policy(placed.address) == (0, 0):
        pytest.skip("this system refuses mbind")
    assert _policy(placed.address) == (1, 1)
    placed.tensor().fill_(7)
    assert int(placed.tensor().sum()) == 7 << 16
    assert not place_pages(placed.address, 1 << 16, ())
    assert not place_pages(placed.address, 1 << 16, {-1})
    assert not place_pages(placed.address, 1 << 16, {4000})
    assert not place_pages(placed.address + 1, 1 << 16, {0})  # no page begins there


def test_node_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    nodes = tmp_path / "sys/devices/system/node"
    (nodes / "node0").mkdir(parents=True)
    assert numa_node(gpu, tmp_path) is None  # one node
    (nodes / "node1").mkdir()
    assert numa_node(gpu, tmp_path) is None  # the system does not tell
    file = tmp_path / "sys/bus/pci/devices/0000:1b:00.0/numa_node"
    file.parent.mkdir(parents=True)
    file.write_text("1\n")
    assert numa_node(gpu, tmp_path) == 1
    assert numa_node(torch.device("cpu"), tmp_path) is None
    file.write_text("-1\n")
    assert numa_node(gpu, tmp_path) is None
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace())
    assert numa_node(gpu, tmp_path) is None  # an old torch
