"""Checks this rank's part of the structure of a graph that is split over ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.memory import Group
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.table.id_list import check_distinct
from peergraph.store.input.schema import Schema
from peergraph.store.input.shared_vector import add_over_ranks
from peergraph.store.input.source import EdgeSource, EdgeType, GraphSource

_ID_CHUNK = 1 << 24


@dataclass
class LocalCsc:
    """This rank's part of one relation: its destinations and their in-neighbours.

    Args:
        indptr, indices: as in :class:`EdgeSource`.
        edge_ids: [E] the edge id of each CSC position; None: they are equal.
    """

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor | None


def local_structure(
    source: GraphSource | None, schema: Schema, group: Group
) -> dict[EdgeType, LocalCsc]:
    """Returns this rank's part of every relation as CSC, with checked ids. Collective.

    Raises:
        IndexError: a node id is out of range. Every rank raises this.
        ValueError: an edge id occurs twice.
    """

    def convert() -> dict[EdgeType, LocalCsc]:
        if source is None or not any(b < e for b, e in schema.node_range[group.rank].values()):
            return {t: _no_edges() for t in schema.num_edges}
        return {t: _to_csc(t, e, schema) for t, e in source.edges.items()}

    local = collective_call(group, convert)
    for edge_type, csc in local.items():
        _check_edge_ids(edge_type, csc, schema, group)
    return local


def _check_edge_ids(edge_type: EdgeType, csc: LocalCsc, schema: Schema, group: Group) -> None:
    """Raises ValueError on every rank if an edge id of a relation occurs twice. Collective."""
    everyone = group.all_gather((csc.edge_ids is not None, csc.indices.numel()))
    if not any(has_ids and count for has_ids, count in everyone):
        return
    begin = schema.edge_begin[group.rank][edge_type]
    ids = csc.edge_ids

    def mark(marks: Tensor) -> None:
        if ids is None:
            marks[begin : begin + csc.indices.numel()] = True
            return
        for piece in torch.split(ids, _ID_CHUNK):
            marks[piece.to(marks.device).long()] = True

    num_edges = schema.num_edges[edge_type]
    # Ranks may set the same values of one vector.
    is_cpu = group.device.type == "cpu"
    marks = add_over_ranks(group, num_edges, mark, torch.bool, atomically=is_cpu)
    if bool(marks.all()):
        return
    name = f"edges of {edge_type}: edge_ids"
    collective_call(
        group, lambda: None if ids is None else check_distinct(name, ids, num_edges, "edges")
    )
    raise ValueError(
        f"edges of {edge_type}: edge_ids of the ranks must be a permutation together, "
        f"some are on two ranks and id {int((~marks).nonzero()[0])} is on none"
    )


def _no_edges() -> LocalCsc:
    return LocalCsc(
        torch.zeros(1, dtype=torch.int64, device="cpu"),
        torch.zeros(0, dtype=torch.int64, device="cpu"),
        None,
    )


def _to_csc(edge_type: EdgeType, edges: EdgeSource, schema: Schema) -> LocalCsc:
    num_sources = schema.num_nodes[edge_type[0]]
    assert edges.csc is not None  # of a source that is split over ranks
    indptr, indices = edges.csc
    limits = [("indices", indices, num_sources, "source nodes")]
    if edges.edge_ids is not None:
        limits.append(("edge_ids", edges.edge_ids, schema.num_edges[edge_type], "edges"))
    for name, ids, limit, what in limits:
        if not ids.numel():
            continue
        low, high = torch.stack(torch.aminmax(ids)).tolist()
        if low < 0 or high >= limit:
            bad = int(((ids < 0) | (ids >= limit)).nonzero()[0])
            raise IndexError(
                f"edges of {edge_type}: {name}[{bad}] = {int(ids[bad])} "
                f"is out of range for {limit} {what}"
            )
    return LocalCsc(indptr.long(), indices, edges.edge_ids)
