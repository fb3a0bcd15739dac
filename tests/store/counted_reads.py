"""Where reads of a store come from, by its plan, for tests of counts."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.memory import Tiers
from peergraph.sampling import Sample
from peergraph.store import Store


def expected_sources(store: Store, rows: Tensor, tiers: Tiers, rank: int) -> list[int]:
    """Reads of rows by source, one row after the other."""
    source = store.plan.partitions_in_use.source[rank]
    world = len(source)
    counts = [0] * (world + 1 + len(vars(tiers)) - 2)
    for row in rows.flatten().tolist():
        if row < tiers.replicated:
            counts[0] += 1
        elif row < tiers.replicated + tiers.sharded:
            counts[1 + source[(row - tiers.replicated) % world]] += 1
        elif row < tiers.replicated + tiers.sharded + tiers.host:
            counts[1 + world] += 1
        else:
            counts[2 + world] += 1
    return counts


def internal(store: Store, node_type: str, ids: Tensor) -> Tensor:
    to_internal = store.id_map(node_type).to_internal
    return ids if to_internal is None else to_internal.read()[ids].long()


def positions(store: Store, edge_type: tuple[str, str, str], edge_ids: Tensor) -> Tensor:
    table = store.csc(edge_type).edge_ids
    assert table is not None
    return table.read().long().argsort()[edge_ids]


def assert_same(a: Sample, b: Sample) -> None:
    for name in ("nodes", "row", "col", "edge_ids"):
        mine, other = getattr(a, name), getattr(b, name)
        assert (mine is None) == (other is None)
        for key in mine or {}:
            assert torch.equal(mine[key], other[key])
            assert mine[key].dtype == other[key].dtype
