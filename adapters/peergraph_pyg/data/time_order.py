"""Sorts the neighbours of each node by their times, once, before the store is built."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from peergraph.store import EdgeSource, GraphSource, RowSource

_DTYPES = (torch.int32, torch.int64)


def sort_by_time(source: GraphSource, time_attr: str) -> None:
    """Puts the edges of a source in the order of destination, then time, then id, as PyG does.

    The ids of the edges stay. Relations without times stay as they are.

    Args:
        source: of a whole graph.
        time_attr: the name of tables of edges, or of tables of nodes, of one column of integers.

    Raises:
        ValueError: neither nodes nor edges have such a table, or both.
        TypeError: the times are no integers.
        NotImplementedError: the edges are in an adjacency matrix, which has an order of its own.
    """
    by_node = {t: v[time_attr] for t, v in source.node_tables.items() if time_attr in v}
    by_edge = {t: v[time_attr] for t, v in source.edge_tables.items() if time_attr in v}
    if bool(by_node) == bool(by_edge):
        where = "both nodes and edges" if by_node else "neither nodes nor edges"
        raise ValueError(f"time_attr: {where} have an attribute {time_attr!r}")
    node_times = {t: _times(time_attr, values) for t, values in by_node.items()}
    sorted_edges = {}
    for edge_type, edges in source.edges.items():
        times = None
        if edge_type in by_edge:
            times = _times(time_attr, by_edge[edge_type])
        elif edge_type[0] in node_times:
            times = node_times[edge_type[0]]
        if times is None or edges.num_edges == 0:
            continue
        if edges.coo is None:
            raise NotImplementedError(
                f"time_attr: {edge_type} has an adjacency matrix, whose edges keep their order; "
                "share its edge_index instead"
            )
        if not _in_range(edges.coo, source.num_nodes[edge_type[0]], source.num_nodes[edge_type[2]]):
            continue  # the store raises the error
        if edge_type not in by_edge:
            times = times[edges.coo[0].long()]
        sorted_edges[edge_type] = _sorted(edges.coo, times, source.num_nodes[edge_type[2]])
    source.edges = {**source.edges, **sorted_edges}


def _sorted(coo: Tensor, times: Tensor, num_destinations: int) -> EdgeSource:
    """Returns the edges in another order; the same edges if that changes no list."""
    if not bool((times[1:] < times[:-1]).any()):
        return EdgeSource(coo=coo)
    order = times.argsort(stable=True)
    destinations = coo[1].long()
    order = order[destinations[order].argsort(stable=True)]
    indptr = torch.zeros(num_destinations + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(destinations.bincount(minlength=num_destinations), 0, out=indptr[1:])
    return EdgeSource(csc=(indptr, coo[0][order]), edge_ids=order)


def _in_range(coo: Tensor, *bounds: int) -> bool:
    return all(
        int(ids.min()) >= 0 and int(ids.max()) < n for ids, n in zip(coo, bounds, strict=True)
    )


def _times(name: str, values: Tensor | RowSource) -> Tensor:
    if values.dtype not in _DTYPES or math.prod(values.shape[1:]) != 1:
        raise TypeError(
            f"time_attr: expected one column of int32 or int64, got {name!r} with "
            f"{values.dtype}, {list(values.shape)}"
        )
    rows = values if isinstance(values, Tensor) else values.rows(0, values.shape[0])
    return rows.reshape(-1).cpu()
