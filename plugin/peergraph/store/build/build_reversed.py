"""The structures of a graph with every edge reversed, in the rest of a store's budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from peergraph.memory import Group
from peergraph.store.build.build_store import build_store
from peergraph.store.contents import StoreContents
from peergraph.store.input.source import EdgeSource, EdgeType, GraphSource, reverse_type
from peergraph.store.placement.added_tables import remaining_budget, remaining_host
from peergraph.store.placement.allocation import Allocation
from peergraph.store.placement.options import PlacementOptions, complete_options


def build_reversed(
    original: StoreContents,
    coo: Mapping[EdgeType, Tensor] | None,
    allocations: Sequence[Allocation],
    group: Group,
) -> StoreContents:
    """Builds the structures of the reversed graph. Collective.

    Args:
        original: the store's.
        coo: the store's edges by type, ``[2, E]`` of sources and destinations, on one rank.
        allocations: all allocations of the store.
    """
    source = None
    if coo is not None:
        edges = {reverse_type(t): EdgeSource(coo=edges.flip(0)) for t, edges in coo.items()}
        source = GraphSource(original.schema.num_nodes, edges)
    record = original.build_record
    spill = remaining_host(record.spill, allocations, group)
    options: PlacementOptions = {
        "memory_budget": remaining_budget(original.plan, allocations, group),
        "topology": record.topology,
        "spill": spill.folder,
        "host_budget": spill.host_budget,
    }
    with group.collective("Store.build"):
        return build_store(source, complete_options(options), group, False)
