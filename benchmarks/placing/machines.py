"""XGNN's machines and others by name, with nominal figures: for its comparisons, and for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from peergraph.memory.topology.topology import Topology

_GIB = 1 << 30
_NVLINK2 = 25e9  # one link of a V100, each way
_PCIE3 = 12e9

# Links per pair of the DGX-1's hybrid cube mesh, numbered as in XGNN's Figure 7: two cliques of
# four and four links between them.
_DGX1_LINKS = {
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (1, 2): 2,
    (1, 3): 1,
    (2, 3): 2,
    (4, 5): 2,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 1,
    (0, 6): 2,
    (1, 7): 2,
    (2, 4): 1,
    (3, 5): 1,
}


def dgx1() -> Topology:
    """Returns the DGX-1 with eight V100s (XGNN Figure 2 b, Figure 7)."""
    bandwidth = [[0.0] * 8 for _ in range(8)]
    for (a, b), links in _DGX1_LINKS.items():
        bandwidth[a][b] = bandwidth[b][a] = links * _NVLINK2
    for gpu in range(8):
        bandwidth[gpu][gpu] = 900e9
    return Topology.from_matrix(
        bandwidth, _PCIE3, memory=16 * _GIB, host_memory=512 * _GIB, name="dgx1"
    )


def fully_linked(count: int) -> Topology:
    """Returns H200s behind a switch: a GPU reads all its peers together as fast as one peer."""
    return replace(Topology.default(count), name=f"full{count}")


def pcie_only(count: int) -> Topology:
    """Returns GPUs that access the host's memory and no other GPU's."""
    bandwidth = [[900e9 if i == j else 0.0 for j in range(count)] for i in range(count)]
    return Topology.from_matrix(
        bandwidth, _PCIE3, memory=32 * _GIB, host_memory=256 * _GIB, name=f"pcie{count}"
    )


MACHINES: dict[str, Callable[[], Topology]] = {
    "single": lambda: fully_linked(1),
    "full2": lambda: fully_linked(2),
    "full4": lambda: fully_linked(4),
    "full8": lambda: fully_linked(8),
    "full16": lambda: fully_linked(16),
    "pcie2": lambda: pcie_only(2),
    "dgx1": dgx1,
    # XGNN 6.6 and 6.4: subsets of the GPUs of Figure 7.
    "dgx1-clique4": lambda: dgx1().subset(range(4)),
    "dgx1-ring4": lambda: dgx1().subset((0, 1, 7, 6)),
    "dgx1-6": lambda: dgx1().subset(range(6)),
    "dgx1-5": lambda: dgx1().subset(range(5)),
}


def machine(name: str) -> Topology:
    """Returns a machine of :data:`MACHINES`. Raises ``ValueError`` for an unknown name."""
    if name not in MACHINES:
        raise ValueError(f"topology must be one of {', '.join(MACHINES)}, got {name!r}")
    return MACHINES[name]()
