"""Parts of a graph's nodes with few edges between them, for training on clusters."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.fullgraph.layout.clusters import community_parts
from peergraph.fullgraph.layout.metis import has_metis, metis_parts
from peergraph.number_arguments import check_number

_METHODS = ("auto", "metis", "metis_recursive", "communities")


def node_parts(
    edge_index: Tensor, num_nodes: int, num_parts: int, *, method: str = "auto", seed: int = 0
) -> Tensor:
    """Partitions the nodes of a graph into parts of about equal size with few edges between them.

    Depends on the arguments only. Not collective; on the CPU it runs in this process alone.

    Args:
        edge_index: [2, edges] ids, on any device; both directions count alike.
        num_nodes, num_parts: at least 1 part.
        method: ``"metis"`` (pymetis, about 100 bytes an edge), ``"metis_recursive"`` (its recursive
            bisection, for the least number of edges between parts), ``"communities"`` (label
            propagation, up to 350 bytes an edge), or ``"auto"``: METIS where pymetis is installed.
        seed: of the random numbers.

    Returns:
        [nodes] int64: the part of each node, on the edges' device.

    Raises:
        ValueError: an unknown method, or a number out of range.
        ImportError: pymetis is not installed, with ``"metis"`` or ``"metis_recursive"``.

    Example::

        part = node_parts(store.edge_index(), store.num_nodes(), 1500)
    """
    if method not in _METHODS:
        raise ValueError(f"method must be one of {_METHODS}, got {method!r}")
    check_number("num_nodes", num_nodes, 0)
    check_number("num_parts", num_parts, 1)
    check_number("seed", seed, 0, 2**31 - 1)
    source, destination = edge_index.long()
    cost = torch.full(
        (num_nodes, 1), 1 / max(num_nodes, 1), dtype=torch.float64, device=edge_index.device
    )
    recursive = method == "metis_recursive"
    if recursive or method == "metis" or (method == "auto" and has_metis()):
        return metis_parts(source, destination, cost, num_parts, seed, recursive=recursive)
    return community_parts(source, destination, cost, num_parts, seed)[0]
