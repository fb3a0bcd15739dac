"""The source of a store: each rank's part of a typed graph, made on its device."""

from __future__ import annotations

import torch
from inputs.arrays import label_rows
from inputs.counter_hash import hash_range, stream_key
from inputs.graphs import coprime
from torch import Tensor

from peergraph.store import EdgeSource, GraphSource, RowSource
from rgat_shape.edges import make_csc
from rgat_shape.graph import TypedGraph

_SEED = 20261129
_VALUES = 8  # one byte of a hash each


def make_source(
    graph: TypedGraph,
    rank: int,
    world: int,
    device: torch.device,
    dtype: torch.dtype,
    storage: str | None,
) -> GraphSource:
    """Returns the part of a rank: its range of the nodes of each type.

    Args:
        dtype: of the rows as users see them.
        storage: of the rows, see `peergraph.store.RowSource`.
    """
    ranges = {t: (n * rank // world, n * (rank + 1) // world) for t, n in graph.nodes.items()}
    edges = {
        stored.type: EdgeSource(csc=make_csc(graph, stored, ranges[stored.type[2]], device))
        for stored in graph.stored
    }
    tables: dict[str, dict[str, Tensor | RowSource]] = {}
    for tag, (node_type, (begin, end)) in enumerate(ranges.items()):
        tables[node_type] = {
            "x": RowSource(
                (end - begin, graph.columns),
                dtype,
                lambda first, last, tag=tag: feature_rows(
                    tag, first, last, graph.columns, dtype, device
                ),
                storage,
            )
        }
    begin, end = ranges[graph.target]
    tables[graph.target]["y"] = RowSource(
        (end - begin,),
        torch.int64,
        lambda first, last: label_rows(torch.arange(first, last, device=device), graph.classes),
    )
    return GraphSource(graph.nodes, edges, tables, node_range=ranges)


def feature_rows(
    tag: int, begin: int, end: int, columns: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Returns features of the nodes begin .. end - 1 of a node type, [rows, columns]: multiples of
    1/64 in [-2, 2), the same for the same tag, which is the number of the node type.
    """
    words = -(-columns // _VALUES)
    hashed = hash_range(stream_key(_SEED, tag), begin * words, end * words, device)
    values = hashed.view(torch.int8).view(end - begin, words * _VALUES)[:, :columns]
    return values.to(dtype).mul_(2.0**-6)


def seed_nodes(graph: TypedGraph, batches: range, batch: int, rank: int, world: int) -> Tensor:
    """Returns the seeds of some batches of a rank, scattered over the labelled nodes: on the CPU.
    All batches of all ranks differ, until every labelled node has been a seed.
    """
    labelled = max(1, int(graph.nodes[graph.target] * graph.labelled))
    first = (torch.tensor(batches) * world + rank) * batch
    positions = (first.view(-1, 1) + torch.arange(batch)).flatten() % labelled
    return positions * coprime(labelled, 0.7548776662466927) % labelled
