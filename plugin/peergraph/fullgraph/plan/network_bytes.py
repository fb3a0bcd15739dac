"""The bytes that full-graph training sends between machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from peergraph.fullgraph.plan.layer_cost import LayerCost
from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.resident_plan import ASSUMED_WIDTH
from peergraph.store.placement.plan import format_bytes


@dataclass(frozen=True)
class NetworkBytes:
    """What the sums of an epoch send over the network.

    A row crosses the network once for each machine that needs it, and so does its gradient.

    Args:
        received, sent: bytes of each machine in an epoch; without widths, of a sum of 128 columns.
    """

    received: tuple[int, ...]
    sent: tuple[int, ...]

    @classmethod
    def of(
        cls, facts: GraphFacts, layers: Sequence[LayerCost], element_bytes: int
    ) -> NetworkBytes | None:
        """Returns what the sums of a plan send between machines; None for one machine.

        Args:
            facts: counts of the graph.
            layers: of the model; none: a sum of 128 columns is counted.
            element_bytes: bytes of an element of the layers.
        """
        if len(facts.machines) < 2:
            return None
        columns = sum(layer.sums * layer.width for layer in layers) if layers else ASSUMED_WIDTH
        row_bytes = columns * element_bytes
        volumes = facts.volumes.values()
        received = zip(*(v.network_received for v in volumes), strict=True)
        sent = zip(*(v.network_sent(facts.machines) for v in volumes), strict=True)
        return cls(
            tuple(sum(rows) * row_bytes for rows in received),
            tuple(sum(rows) * row_bytes for rows in sent),
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)

    def describe(self, per: str) -> str:
        """Returns a line of text.

        Args:
            per: what was counted, as in "epoch".
        """
        received, sent = format_bytes(max(self.received)), format_bytes(max(self.sent))
        return (
            f"  network: the busiest of {len(self.received)} machines receives {received} and "
            f"sends {sent} each {per}"
        )
