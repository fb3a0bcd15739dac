"""The rows and the structures of a graph that is larger than the memory of its GPUs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

import torch
from torch import Tensor

from peergraph.fullgraph.layout.blocks import balance_cost
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunks.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.edges.offloaded_csc import OffloadedCsc
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.offload.rows.user_rows import store_table
from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor, from_store
from peergraph.fullgraph.offload.tensor.row_space import RowSpaces
from peergraph.fullgraph.plan.offload_cost import ChunkSize
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.memory import Group
from peergraph.memory.table.table import Table
from peergraph.store import EdgeType, NodeType

MakeAllocator = Callable[[Callable[[bool], ChunkSize]], RowAllocator]
"""Returns the memory for rows. Called with a function that counts the rows, edges and, if asked
for, sources of the largest chunk."""


class OffloadedGraph:
    """Nodes of all types in chunks, and where their rows are stored. Collective to make.

    Args:
        group: the ranks.
        num_chunks: of each rank's nodes.
        layouts: rows of nodes, by type.
        structures: edges, by relation.
        make_allocator: makes the memory for rows.
        features_on_device: whether rows of the user's tables may take memory of the device.
    """

    def __init__(
        self,
        group: Group,
        num_chunks: int,
        layouts: Mapping[NodeType, RowLayout],
        structures: Mapping[EdgeType, PartitionedCsc],
        make_allocator: MakeAllocator,
        features_on_device: bool = True,
    ) -> None:
        chunks = {}
        for node_type, layout in layouts.items():
            degrees = torch.zeros(layout.local_count, dtype=torch.int64, device=group.device)
            for (_, _, destination), structure in structures.items():
                if destination == node_type:
                    degrees += structure.local.in_degrees()
            chunks[node_type] = Chunks.balanced(layout, num_chunks, balance_cost(degrees))
        chunked = {
            edge_type: ChunkedCsc(structure, chunks[edge_type[2]])
            for edge_type, structure in structures.items()
        }
        largest = partial(_largest_chunk, num_chunks, chunks.values(), chunked.values())
        self.allocator = make_allocator(largest)
        """Memory for rows of this rank."""
        self.features_on_device = features_on_device
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
        if self.allocator.trace is not None:
            self.allocator.trace.add_input(store)
        rows = from_store(space, store)
        rows._content.is_input = True
        return rows


def _largest_chunk(
    num_chunks: int,
    chunks: Collection[Chunks],
    structures: Collection[ChunkedCsc],
    counts_sources: bool,
) -> ChunkSize:
    """Returns the most rows, edges and sources of this rank's chunks. Synchronises.

    Args:
        num_chunks: of this rank.
        chunks: of nodes, by type.
        structures: edges, by relation.
        counts_sources: whether to count sources; else there are none.
    """
    ranks = next(iter(chunks)).row_layout.group.world_size
    rows = edges = sources = 0
    for number in range(num_chunks):
        rows = max(rows, sum(of_type.sizes[number] for of_type in chunks))
        edges = max(edges, sum(csc.edge_chunks.sizes[number] for csc in structures))
        if counts_sources:
            num_sources = sum(len(csc.sources(number)) for csc in structures)
            # As planned: other ranks need as many of this rank's rows.
            sources = max(sources, num_sources + num_sources * (ranks - 1) // ranks)
    return ChunkSize(rows, edges, sources)
