"""The passes of an epoch over chunks, the rows that they read and write, and a model's memory.

Sources of a layer's sum are read in the order of edges, everything else in the order of rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from peergraph.fullgraph.plan.memory_items import GraphFacts, MemoryItem
from peergraph.memory.device.default_machine import WORK

SOURCE, SEQUENTIAL = "source", "sequential"
BEFORE = -1
"""In place of the number of a pass: before the first epoch."""


@dataclass(frozen=True)
class StoredRows:
    """Rows of nodes or edges that passes leave for later passes.

    Args:
        name: as printed.
        columns: elements of a row.
        element_bytes: of an element.
        role: "source", read in the order of edges, or "sequential".
        first, last: the passes in which they exist, counted from 0.
        share: their number, in nodes of all types.
        is_input: whether they are the user's, such as features, and not computed.
        summed, read: of sums that can also be computed again: the names of the rows that are
            summed, and of those that are read in order for it.
    """

    name: str
    columns: int
    element_bytes: int
    role: str
    first: int
    last: int
    share: float = 1.0
    is_input: bool = False
    summed: tuple[str, ...] = ()
    read: tuple[str, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as layers compute it."""
        return self.columns * self.element_bytes

    def stored_bytes(self, rows: int, hidden_bytes: int | None) -> int:
        """Returns the bytes in which all rows are stored.

        Args:
            rows: nodes of all types.
            hidden_bytes: bytes of an element of rows that are computed; None: as many as layers
                compute with.
        """
        narrow = hidden_bytes is not None and not self.is_input
        element = min(hidden_bytes or 0, self.element_bytes) if narrow else self.element_bytes
        return math.ceil(self.share * rows) * self.columns * element


@dataclass(frozen=True)
class ChunkedPass:
    """One pass over all chunks.

    Args:
        name: as printed.
        reads: names of rows that are read in order.
        sources: names of rows that are read in the order of edges.
        writes: names of rows that are written.
        adds: names of rows that gradients are added to in the order of edges.
        share: of the rows that the chunks have, how many are computed.
        nodes: the rows that are computed, in nodes of all types.
        working_bytes: that the computation holds at its peak for each of these.
        edges: the edges to these, in edges of all relations.
        edge_bytes: that the computation holds at its peak for each of these.
        fixed_bytes: that it holds for neither, such as gradients of parameters.
    """

    name: str
    reads: tuple[str, ...]
    sources: tuple[str, ...]
    writes: tuple[str, ...]
    adds: tuple[str, ...] = ()
    share: float = 1.0
    nodes: float = 1.0
    working_bytes: float = 0.0
    edges: float = 1.0
    edge_bytes: float = 0.0
    fixed_bytes: int = 0


@dataclass(frozen=True)
class Schedule:
    """The passes of an epoch, and the rows between them."""

    passes: tuple[ChunkedPass, ...]
    rows: tuple[StoredRows, ...]

    def find(self, name: str) -> StoredRows:
        """Returns stored rows by name."""
        return next(rows for rows in self.rows if rows.name == name)

    def row_bytes(self, *names: str) -> int:
        """Returns the bytes of a row of all of some stored rows together."""
        return sum(self.find(name).row_bytes for name in names)

    @property
    def adds_to_sources(self) -> bool:
        """Whether a pass adds gradients in the order of edges; others sum over reversed edges."""
        return any(step.adds for step in self.passes)

    def summable(self) -> list[str]:
        """Returns the names of sums that can be computed again in place of being stored.

        In the order in which they are computed.
        """
        sums = [rows for rows in self.rows if rows.summed and rows.first > BEFORE]
        return [rows.name for rows in sorted(sums, key=lambda rows: rows.first)]

    def summing_again(self, names: Collection[str]) -> Schedule:
        """Returns the passes of an epoch that computes sums again where it needs them.

        The rows that are summed stay until then.

        Args:
            names: of :meth:`summable`.
        """
        sums = {name: self.find(name) for name in names}
        last = {rows.name: rows.last for rows in self.rows}
        for rows in sums.values():
            for name in (*rows.summed, *rows.read):
                last[name] = max(last[name], rows.last)

        def sums_again(step: ChunkedPass) -> ChunkedPass:
            again = [sums[name] for name in step.reads if name in sums]
            read = (name for rows in again for name in rows.read)
            summed = (name for rows in again for name in rows.summed)
            return replace(
                step,
                reads=tuple(dict.fromkeys(n for n in (*step.reads, *read) if n not in sums)),
                sources=tuple(dict.fromkeys([*step.sources, *summed])),
                writes=tuple(name for name in step.writes if name not in sums),
            )

        return Schedule(
            tuple(map(sums_again, self.passes)),
            tuple(replace(r, last=last[r.name]) for r in self.rows if r.name not in sums),
        )


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
        """Returns the device memory of labelled nodes; none if it is unknown which these are."""
        if self.labelled_bytes is None:
            return []
        rows = "labelled rows", "output, loss and gradients"
        items = [MemoryItem.of_each(*rows, self.labelled_bytes, facts.rows)]
        if self.sorts_by_chunk:
            edges = "labelled edges", "structure of labelled nodes"
            num_bytes = self.labelled_edges * _LABELLED_EDGE_BYTES
            items.append(MemoryItem.of_each(*edges, num_bytes, facts.num_edges))
        return items
