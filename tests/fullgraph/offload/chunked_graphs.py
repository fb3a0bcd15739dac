"""Graphs that are cut in chunks, with every rank's part known from plain tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunks.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.chunks.source_transfers import ALL_SWITCHES, Switches
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.memory import Group


@dataclass
class ChunkedGraph:
    """A graph that all ranks know, and this rank's part of it."""

    sources: Tensor
    """[edges] int64 internal row of each edge's source, on the CPU; edges by destination."""
    destinations: Tensor
    """[edges] int64 internal row of each edge's destination."""
    source_layout: RowLayout
    destination_layout: RowLayout
    resident: PartitionedCsc

    def chunked(self, count: int, switches: Switches = ALL_SWITCHES) -> ChunkedCsc:
        """The structure with `count` chunks, the first of them empty where there are three."""
        rows = self.destination_layout.local_count
        offsets = [rows * chunk // count for chunk in range(count + 1)]
        if count >= 3:
            offsets[1] = 0
        return ChunkedCsc(self.resident, Chunks(self.destination_layout, offsets), switches)

    def rank_edges(self, rank: int) -> Tensor:
        """Which edges belong to a rank, [edges] bool."""
        first = self.destination_layout.offsets[rank]
        last = first + self.destination_layout.counts[rank]
        return (self.destinations >= first) & (self.destinations < last)


def make_graph(
    group: Group,
    num_nodes: int,
    num_edges: int,
    counts: list[int],
    *,
    num_sources: int | None = None,
    source_counts: list[int] | None = None,
    hub: bool = False,
    seed: int = 0,
) -> ChunkedGraph:
    """A random graph.

    Args:
        num_nodes, counts: destinations, and how many of them each rank has.
        num_sources, source_counts: the same of sources; None: the same nodes.
        hub: whether half of the edges go to destination 1.
    """
    generator = torch.Generator().manual_seed(seed)
    total = num_nodes if num_sources is None else num_sources
    source = torch.randint(total, (num_edges,), generator=generator, device="cpu")
    destination = torch.randint(num_nodes, (num_edges,), generator=generator, device="cpu")
    if hub:
        destination[: num_edges // 2] = 1
    destination = destination.sort().values
    order = torch.randperm(num_nodes, generator=generator, device="cpu")
    layout = RowLayout.from_order(group, order, counts)
    source_layout = layout
    if num_sources is not None and source_counts is not None:
        order = torch.randperm(num_sources, generator=generator, device="cpu")
        source_layout = RowLayout.from_order(group, order, source_counts)
    first = layout.offsets[group.rank]
    mine = (destination >= first) & (destination < first + layout.local_count)
    edge_counts = [
        int(((destination >= start) & (destination < start + count)).sum())
        for start, count in zip(layout.offsets, layout.counts, strict=True)
    ]
    edge_layout = RowLayout(group, edge_counts, mine.nonzero().squeeze(1).to(group.device))
    resident = PartitionedCsc.from_local_edges(
        source_layout,
        layout,
        edge_layout,
        source[mine].to(group.device),
        (destination[mine] - first).to(group.device),
    )
    return ChunkedGraph(source, destination, source_layout, layout, resident)
