"""What an epoch of a model reads, writes and holds, as a dry run on a small graph has shown."""

from __future__ import annotations

import math
from dataclasses import dataclass

from peergraph.fullgraph.plan.memory_items import GraphFacts, MemoryItem
from peergraph.fullgraph.plan.schedule import Schedule
from peergraph.memory.device.default_machine import WORK

# Bytes of an edge to a labelled node: its source. Only layers that add gradients to sources need
# this memory in addition; others use the memory of the transposes, which are made later.
_LABELLED_EDGE_BYTES = 4


@dataclass(frozen=True)
class RecordedModel:
    """The passes of an epoch of a model, and the memory that it takes.

    Made by :func:`peergraph.fullgraph.named_model` and from the ``loss`` of the adapters'
    ``full_graph``.

    Args:
        name: as printed.
        schedule: the passes of offloaded training, with all sums stored.
        node_bytes, edge_bytes: the most that resident training holds for each node and edge,
            without the user's rows.
        labelled_bytes: for each node, the most that rows of selected nodes take in offloaded
            training; None: it is not known which nodes the loss is computed of.
        labelled_edges: edges to selected nodes, of all edges.
        assumed: whether the model is assumed, and not the user's.
    """

    name: str
    schedule: Schedule
    node_bytes: float
    edge_bytes: float
    labelled_bytes: float | None
    labelled_edges: float = 0.0
    assumed: bool = False

    @property
    def sorts_by_chunk(self) -> bool:
        """Whether edges are sorted by source chunk by chunk, not all once.

        If the labelled nodes are not known, the memory that this saves is left to the edges of the
        loss's nodes.
        """
        return self.schedule.adds_to_sources and self.labelled_bytes is not None

    def schedules(self, facts: GraphFacts, hidden_bytes: int | None) -> list[Schedule]:
        """Returns the passes with all sums stored, then with ever more sums computed again.

        Args:
            facts: of the graph, which must not have many edges.
            hidden_bytes: in which elements are stored; None: as layers compute them. Sums of rows
                that are converted are not computed again.
        """
        again = self.schedule.summable()
        edges = sum(sum(volume.num_edges) for volume in facts.volumes.values())
        if hidden_bytes is not None or edges > WORK.summed_edges * sum(facts.rows):
            again = []
        return [self.schedule.summing_again(again[:count]) for count in range(len(again) + 1)]

    def resident_items(self, facts: GraphFacts) -> list[MemoryItem]:
        """Returns the memory of resident training besides the graph and its rows."""
        edges = [sum(v.num_edges[rank] for v in facts.volumes.values())
                 for rank in range(facts.world_size)]  # fmt: skip
        parts = ((self.node_bytes, facts.rows), (self.edge_bytes, edges))
        of_nodes, of_edges = (tuple(math.ceil(size * n) for n in counts) for size, counts in parts)
        return [
            MemoryItem("layers", "rows of layers, gradients", of_nodes),
            MemoryItem("layers' edges", "rows of edges, gradients", of_edges),
        ]

    def labelled_items(self, facts: GraphFacts) -> list[MemoryItem]:
        """Returns the memory of labelled nodes, which is on the device; none if not known."""
        if self.labelled_bytes is None:
            return []
        rows = tuple(math.ceil(self.labelled_bytes * n) for n in facts.rows)
        items = [MemoryItem("labelled rows", "output, loss and gradients", rows)]
        if self.sorts_by_chunk:
            edges = tuple(
                math.ceil(
                    self.labelled_edges
                    * sum(volume.num_edges[rank] for volume in facts.volumes.values())
                    * _LABELLED_EDGE_BYTES
                )
                for rank in range(facts.world_size)
            )
            items.append(MemoryItem("labelled edges", "structure of labelled nodes", edges))
        return items
