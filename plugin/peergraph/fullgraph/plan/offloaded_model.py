"""What the plan of offloaded training knows of the model."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from peergraph.fullgraph.plan.memory_items import GraphFacts, MemoryItem
from peergraph.fullgraph.plan.schedule.make_schedule import LAYER_TYPES, make_schedule
from peergraph.fullgraph.plan.schedule.schedule import FEATURES, Schedule
from peergraph.memory.device.default_machine import WORK

_ASSUMED_HEADS = 4
# Copies of what the loss is computed of: the output of labelled nodes, its logarithms of softmax,
# gradients of both, and a buffer of either.
_LABELLED_OUTPUTS = 5
# Copies of the last layer's inputs with gates: its sums and own rows, and their gradients.
_GATED_INPUTS = 2
# Bytes of an edge to a labelled node: its source. Only attention needs this memory in addition;
# other layers use the memory of the transposes, which are made later.
_LABELLED_EDGE_BYTES = 4


@dataclass(frozen=True)
class OffloadedModel:
    """The layers of a model, and the types of its rows.

    Args:
        widths: columns of the input and of each layer's output.
        assumed: whether the widths are not known, but assumed.
        element_bytes: bytes of an element of the layers.
        heads: of attention; 0: layers that sum.
        layer_type: of layers that sum, one of :data:`LAYER_TYPES`.
        hidden_bytes: bytes of an element of rows that passes store; None: `element_bytes`.
        labelled: share of the nodes that the loss is computed of; None: not known, at most all.

    Raises:
        ValueError: an unknown layer type, or a share that is not in (0, 1].
    """

    widths: tuple[int, ...]
    assumed: bool
    element_bytes: int
    heads: int = 0
    layer_type: str = "gcn"
    hidden_bytes: int | None = None
    labelled: float | None = None

    def __post_init__(self) -> None:
        if self.layer_type not in LAYER_TYPES:
            raise ValueError(
                f"layer_type must be one of {', '.join(LAYER_TYPES)}, got {self.layer_type!r}"
            )
        if self.labelled is not None and not 0 < self.labelled <= 1:
            raise ValueError(
                f"labelled must be a share of the nodes in (0, 1], got {self.labelled}"
            )

    @property
    def stored_bytes(self) -> int:
        """Bytes of an element of rows that passes store."""
        return self.hidden_bytes or self.element_bytes

    @property
    def edge_columns(self) -> int:
        """Elements that are computed for each edge. A model that is assumed may have attention."""
        return 2 * (self.heads or (_ASSUMED_HEADS if self.assumed else 0))

    @property
    def sorts_by_chunk(self) -> bool:
        """Whether edges are sorted by source chunk by chunk, not all once.

        Layers of attention do so. If the labelled nodes are not known, the memory that this saves
        is left to the edges of the loss's nodes.
        """
        return self.heads > 0 and self.labelled is not None

    def schedule(self, summed_again: Collection[int] = ()) -> Schedule:
        """Returns the passes of an epoch.

        Args:
            summed_again: layers, counted from 0, with sums that the backward pass computes again.
        """
        labelled = 1.0 if self.labelled is None else self.labelled
        return make_schedule(self.widths, self.heads, labelled, self.layer_type, summed_again)

    def schedules(self, facts: GraphFacts) -> list[Schedule]:
        """Returns the passes with all sums stored, then with ever more sums computed again.

        The sum of the features and that of the last layer are never computed again.
        """
        sums_only = not self.heads and self.layer_type != "ggnn"
        edges = sum(sum(volume.num_edges) for volume in facts.volumes.values())
        can_sum = sums_only and edges <= WORK.summed_edges * sum(facts.rows)
        last = len(self.widths) - 2 if can_sum else 1
        return [self.schedule(range(1, count)) for count in range(1, max(1, last) + 1)]

    def row_bytes(self, schedule: Schedule, facts: GraphFacts) -> dict[str, int]:
        """Returns the bytes of all rows of the busiest rank, by name. Features keep their type."""
        return {
            rows.name: math.ceil(rows.share * max(facts.rows))
            * rows.columns
            * (self.element_bytes if rows.name == FEATURES else self.stored_bytes)
            for rows in schedule.rows
        }

    def labelled_items(self, facts: GraphFacts) -> list[MemoryItem]:
        """Returns the memory of labelled nodes, which is on the device; none if not known."""
        if self.labelled is None:
            return []
        columns = self._labelled_columns
        row_bytes = columns * self.element_bytes
        num_bytes = tuple(math.ceil(self.labelled * rows) * row_bytes for rows in facts.rows)
        items = [MemoryItem("labelled rows", "output, loss and gradients", num_bytes)]
        if self.sorts_by_chunk:
            edges = [
                sum(volume.num_edges[rank] for volume in facts.volumes.values())
                for rank in range(facts.world_size)
            ]
            selected = tuple(math.ceil(self.labelled * n) * _LABELLED_EDGE_BYTES for n in edges)
            items.append(MemoryItem("labelled edges", "structure of labelled nodes", selected))
        return items

    @property
    def _labelled_columns(self) -> int:
        """Elements of a labelled row that are held at a time, measured.

        These are the outputs with the rows of the last layer's sums, or, in the backward pass, some
        of the outputs with these rows and their gradients.
        """
        before, out = self.widths[-2:]
        if self.layer_type == "ggnn" and not self.heads:
            return _LABELLED_OUTPUTS * out + _GATED_INPUTS * (min(before, out) + before)
        summed = out if self.heads else before if self.layer_type == "gin" else min(before, out)
        return max(_LABELLED_OUTPUTS * out + summed, 3 * out + 2 * summed)
