"""The rows and the structures of a graph that is larger than the memory of its GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os import PathLike

import torch
from torch import Tensor

from peergraph.fullgraph.layout.blocks import balance_cost
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunks.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.edges.offloaded_csc import OffloadedCsc
from peergraph.fullgraph.offload.rows.budget import make_allocator
from peergraph.fullgraph.offload.rows.store_table import store_table
from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor, from_store
from peergraph.fullgraph.offload.tensor.row_space import RowSpaces
from peergraph.fullgraph.plan.offload_cost import DEVICE, ChunkSize
from peergraph.fullgraph.plan.offload_plan import OffloadPlan
from peergraph.fullgraph.plan.schedule.schedule import FEATURES
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.memory import Group
from peergraph.memory.table.table import Table
from peergraph.store import EdgeType, NodeType


class OffloadedGraph:
    """Nodes of all types in chunks, and where their rows are stored. Collective to make.

    Args:
        group: the ranks.
        plan: number of chunks, and memory for rows.
        layouts: rows of nodes, by type.
        structures: edges, by relation.
        folder: for files with rows for which the host has no room; None: no files.
        hidden_dtype: in which rows that passes compute are stored; None: in their own.
    """

    def __init__(
        self,
        group: Group,
        plan: OffloadPlan,
        layouts: Mapping[NodeType, RowLayout],
        structures: Mapping[EdgeType, PartitionedCsc],
        folder: str | PathLike[str] | None = None,
        hidden_dtype: torch.dtype | None = None,
    ) -> None:
        chunks = {}
        for node_type, layout in layouts.items():
            degrees = torch.zeros(layout.local_count, dtype=torch.int64, device=group.device)
            for (_, _, destination), structure in structures.items():
                if destination == node_type:
                    degrees += structure.local.in_degrees()
            # Nodes without edges are read and written, too.
            chunks[node_type] = Chunks.balanced(layout, plan.num_chunks, balance_cost(degrees + 1))
        chunked = {
            edge_type: ChunkedCsc(structure, chunks[edge_type[2]])
            for edge_type, structure in structures.items()
        }
        largest = _largest_chunk(plan, chunks.values(), chunked.values())
        self.allocator = make_allocator(group, plan, largest, folder, hidden_dtype)
        """Memory for rows of this rank."""
        # Of a model that is not known it is not known either whether each epoch reads them.
        self.features_on_device = plan.assumed or plan.placement.tiers[FEATURES] == DEVICE
        """Whether the plan leaves memory of the device to rows of the user's tables."""
        self.spaces = RowSpaces(self.allocator)
        """Rows by chunk."""
        self._node_spaces = [self.spaces.add(layouts[t], chunks[t]) for t in layouts]
        self.structures = {
            edge_type: OffloadedCsc(self.spaces, csc) for edge_type, csc in chunked.items()
        }
        """Edges by chunk of their destinations, by relation."""

    def rows(self, table: Table | Tensor, layout: RowLayout, what: str) -> OffloadedTensor:
        """Returns this rank's rows of a table. Not collective; synchronises.

        They go to the device if it has room and the plan leaves it to them.

        Args:
            table: [layout.size, *features].
            layout: of nodes of a type, or of edges of a relation.
            what: the rows, for errors.
        """
        space = self.spaces.find(layout)
        assert space is not None
        store = store_table(self.allocator, table, layout, what, self.features_on_device)
        rows = from_store(space, store)
        rows._content.is_given = True
        return rows


def _largest_chunk(
    plan: OffloadPlan, chunks: Collection[Chunks], structures: Collection[ChunkedCsc]
) -> ChunkSize:
    """Returns the most rows, edges and sources of this rank's chunks. Synchronises.

    Args:
        plan: says whether the number of sources counts.
        chunks: of nodes, by type.
        structures: edges, by relation.
    """
    ranks = next(iter(chunks)).layout.group.world_size
    rows = edges = sources = 0
    for number in range(plan.num_chunks):
        rows = max(rows, sum(of_type.sizes[number] for of_type in chunks))
        edges = max(edges, sum(csc.edge_chunks.sizes[number] for csc in structures))
        if plan.needs_source_counts:
            needed = sum(len(csc.sources(number)) for csc in structures)
            # As planned: other ranks need as many of this rank's rows.
            sources = max(sources, needed + needed * (ranks - 1) // ranks)
    return ChunkSize(rows, edges, sources)
