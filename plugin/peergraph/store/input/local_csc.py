"""Checks this rank's part of the structure of a graph that is split over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.memory import Group
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.table.id_list import check_distinct
from peergraph.store.input.schema import Schema
from peergraph.store.input.shared_vector import build_shared_vector
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
    _check_split_edge_ids(local, schema, group)
    return local


def _check_split_edge_ids(local: Mapping[EdgeType, LocalCsc], schema: Schema, group: Group) -> None:
    """Raises ValueError on every rank if two parts of a split source have an edge id in common.
    Within a part, ids have been checked before. Collective.
    """
    mine = {t: (csc.edge_ids is not None, csc.indices.numel()) for t, csc in local.items()}
    everyone = group.all_gather(mine)
    for edge_type, csc in local.items():
        shares = [given[edge_type] for given in everyone if given[edge_type][1]]
        if len(shares) < 2 or not any(has_ids for has_ids, _ in shares):
            continue
        begin = schema.edge_begin[group.rank][edge_type]

        def mark(seen: Tensor, csc: LocalCsc = csc, begin: int = begin) -> None:
            if csc.edge_ids is None:
                seen[begin : begin + csc.indices.numel()] = True
                return
            for piece in torch.split(csc.edge_ids, _ID_CHUNK):
                seen[piece.long()] = True

        seen = build_shared_vector(group, schema.num_edges[edge_type], mark, torch.bool)
        if not bool(seen.all()):
            raise ValueError(
                f"edges of {edge_type}: edge_ids of the ranks must be a permutation together, "
                f"some are on two ranks and id {int((~seen).nonzero()[0])} is on none"
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
    if indices.numel() and (int(indices.min()) < 0 or int(indices.max()) >= num_sources):
        bad = int(((indices < 0) | (indices >= num_sources)).nonzero()[0])
        raise IndexError(
            f"edges of {edge_type}: indices[{bad}] = {int(indices[bad])} "
            f"is out of range for {num_sources} source nodes"
        )
    if edges.edge_ids is not None:
        name = f"edges of {edge_type}: edge_ids"
        check_distinct(name, edges.edge_ids, schema.num_edges[edge_type], "edges")
    return LocalCsc(indptr.long(), indices, edges.edge_ids)
