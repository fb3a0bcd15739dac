"""Several relations over the same nodes, whose sources are exchanged once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from peergraph.aggregate import Csc
from peergraph.fullgraph.exchange.halo import Halo
from peergraph.fullgraph.exchange.machine_halo import make_halo
from peergraph.fullgraph.exchange.transport import split_rows


def join_relations(plans: Sequence[Halo], relations: Sequence[Csc]) -> tuple[Halo, list[Csc]]:
    """Returns one plan for the rows that all relations need, and their edges from its rows.

    Collective. Offsets and edge ids are shared with the given relations.

    Args:
        plans: by relation, over one layout.
        relations: the edges of each, from extended rows of its plan.
    """
    if all(plan.is_empty for plan in plans):
        return plans[0], list(relations)
    layout = plans[0].layout
    joined_plan, extended = make_halo(layout, torch.cat([plan.halo_rows for plan in plans]))
    own = torch.arange(layout.local_count, device=extended.device, dtype=extended.dtype)
    joined = []
    halos = split_rows(extended, [len(plan.halo_rows) for plan in plans])
    for relation, halo in zip(relations, halos, strict=True):
        indices = torch.cat([own, halo])[relation.indices.long()].to(relation.indices.dtype)
        joined.append(
            Csc(
                relation.indptr,
                indices,
                joined_plan.num_extended,
                edge_ids=relation.edge_ids,
                max_chunks=relation.max_chunks,
                check=False,
            )
        )
    return joined_plan, joined
