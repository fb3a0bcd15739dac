"""Partitions by METIS, through pymetis where it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

_INSTALL = 'METIS needs pymetis: pip install "peergraph[partition]"'
_WEIGHT_SUM = 1 << 30


def has_metis() -> bool:
    """Returns whether pymetis is installed."""
    return find_spec("pymetis") is not None


def metis_parts(
    source: Tensor,
    destination: Tensor,
    cost: Tensor,
    world_size: int,
    seed: int,
    *,
    recursive: bool = False,
) -> Tensor:
    """Partitions a graph by METIS, for the least communication volume (its objective VOL), or by
    recursive bisection, which has the objective CUT only: the fewest edges between parts.

    Runs in one thread on the CPU; takes about 100 bytes an edge. Edges count in both directions,
    self loops and repeated edges do not.

    Args:
        source, destination: [edges] int64 ends of the edges.
        cost: [nodes, costs] float64; the sum of a node's costs is balanced over the parts.
        world_size: number of parts.
        seed: of METIS.
        recursive: bisect recursively.

    Returns:
        [nodes] int64: the part of each node, on the edges' device.

    Raises:
        ImportError: pymetis is not installed.
    """
    pymetis = _import_pymetis()
    nodes = cost.shape[0]
    weight = cost.sum(1)
    if nodes <= world_size or world_size == 1:
        return torch.arange(nodes, device=source.device) % world_size
    ends = source != destination
    low, high = source[ends], destination[ends]
    both = torch.unique(torch.cat([low * nodes + high, high * nodes + low]))
    indptr = torch.searchsorted(both, torch.arange(nodes + 1, device=both.device) * nodes)
    # An integer for each node, at least 1; the sum must fit 32 bits.
    scale = min(100.0 * nodes, _WEIGHT_SUM / 2)
    weights = (weight / weight.sum() * scale).ceil().long()
    partition = pymetis.part_graph(
        world_size,
        pymetis.CSRAdjacency(indptr.cpu().numpy(), (both % nodes).cpu().numpy()),
        vweights=weights.cpu().numpy(),
        recursive=recursive,
        options=pymetis.Options(objtype=0 if recursive else 1, seed=seed),
    )
    part = torch.tensor(partition.vertex_part, dtype=torch.int64, device="cpu")
    return part.to(source.device)


def _import_pymetis() -> Any:
    try:
        import pymetis
    except ImportError as error:
        raise ImportError(_INSTALL) from error
    return pymetis
