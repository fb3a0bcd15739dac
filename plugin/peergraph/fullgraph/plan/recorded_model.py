"""What an epoch of a model reads, writes and holds, as a dry run on a small graph has shown."""

from __future__ import annotations

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
        if hidden_bytes is not None or sum(facts.num_edges) > WORK.summed_edges * sum(facts.rows):
            again = []
        return [self.schedule.summing_again(again[:count]) for count in range(len(again) + 1)]

    def resident_items(self, facts: GraphFacts) -> list[MemoryItem]:
        """Returns the memory of resident training besides the graph and its rows."""
        return [
            MemoryItem.of_each("layers", "rows of layers, gradients", self.node_bytes, facts.rows),
            MemoryItem.of_each(
                "layers' edges", "rows of edges, gradients", self.edge_bytes, facts.num_edges
            ),
        ]

    def labelled_items(self, facts: GraphFacts) -> list[MemoryItem]:
        """Returns the memory of labelled nodes, which is on the device; none if not known."""
        if self.labelled_bytes is None:
            return []
        rows = "labelled rows", "output, loss and gradients"
        items = [MemoryItem.of_each(*rows, self.labelled_bytes, facts.rows)]
        if self.sorts_by_chunk:
            edges = "labelled edges", "structure of labelled nodes"
            num_bytes = self.labelled_edges * _LABELLED_EDGE_BYTES
            items.append(MemoryItem.of_each(*edges, num_bytes, facts.num_edges))
        return items
