"""Lookups in a CSC, and counts of calls, for samplers while the store counts its reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from peergraph.sampling.sample import EdgeType

if TYPE_CHECKING:
    from peergraph.store import Store


def csc_rows(store: Store, edge_type: EdgeType, node_ids: Tensor) -> Tensor:
    """Converts users' ids of destination nodes to rows of the relation's CSC; -1 stays -1."""
    to_internal = store.id_map(edge_type[2]).to_internal
    if to_internal is None or node_ids.numel() == 0 or to_internal.rows == 0:
        return node_ids
    rows = to_internal.as_tensor()[node_ids.clamp(min=0)].long()
    return torch.where(node_ids < 0, node_ids, rows)


def edge_ids_at(store: Store, edge_type: EdgeType, positions: Tensor) -> Tensor:
    """Looks up users' edge ids by positions in the user's CSC; -1 stays -1."""
    table = store.csc(edge_type).edge_ids
    if table is None:
        return positions
    ids = table.gather(positions.contiguous(), padded=True).long()
    return torch.where(positions < 0, positions, ids)


def count_walks(store: Store) -> None:
    """Counts a call that walked, where the store counts its reads."""
    measuring = store.measuring  # Another thread may end it.
    if measuring is not None:
        measuring.add_walks()
