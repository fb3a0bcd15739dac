"""NUMA: pages of host memory lie on the sockets of the GPUs that read them."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from collections.abc import Collection
from pathlib import Path

import torch

_logger = logging.getLogger(__name__)

# The number of Linux's mbind, which the C library does not have.
_MBIND = {"x86_64": 237, "aarch64": 235}
# Both use other nodes if these are full.
_PREFERRED, _INTERLEAVE = 1, 3
_MOST_NODES = 1024


def numa_node(device: torch.device, root: Path = Path("/")) -> int | None:
    """Returns the NUMA node of a GPU's socket; None for the CPU, on a machine with one node, and if
    the system does not tell.

    Args:
        root: the folder that contains /sys.
    """
    nodes = (root / "sys/devices/system/node").glob("node[0-9]*")
    if device.type != "cuda" or len(list(nodes)) < 2:
        return None
    properties = torch.cuda.get_device_properties(device)
    try:  # the oldest supported torch lacks the numbers
        domain, bus, slot = (
            getattr(properties, f"pci_{name}_id") for name in ("domain", "bus", "device")
        )
        path = root / f"sys/bus/pci/devices/{domain:04x}:{bus:02x}:{slot:02x}.0/numa_node"
        node = int(path.read_text())
    except (AttributeError, OSError, ValueError):
        return None
    return node if node >= 0 else None


def place_pages(address: int, num_bytes: int, nodes: Collection[int]) -> bool:
    """Has pages of memory that were not touched yet allocated on NUMA nodes: in turn on several.

    Args:
        address: of a page.
        nodes: the numbers of the nodes.

    Returns:
        Whether the system does so. In containers it may refuse; then the pages lie on the node of
        the process that touches them first.
    """
    number = _MBIND.get(platform.machine())
    if number is None or not nodes or not 0 <= min(nodes) <= max(nodes) < _MOST_NODES:
        return False
    bits = sum(1 << node for node in set(nodes))
    mask = bits.to_bytes(_MOST_NODES // 8, "little")
    policy = _PREFERRED if len(set(nodes)) == 1 else _INTERLEAVE
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(address),
        ctypes.c_ulong(num_bytes),
        ctypes.c_ulong(policy),
        mask,
        # The kernel takes one bit less than the number says.
        ctypes.c_ulong(_MOST_NODES + 1),
        ctypes.c_ulong(0),
    )
    if failed:
        why = os.strerror(ctypes.get_errno())
        _logger.info("host memory is not placed on NUMA nodes %s: %s", sorted(nodes), why)
    return not failed
