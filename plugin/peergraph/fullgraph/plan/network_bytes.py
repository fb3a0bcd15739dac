"""The bytes that full-graph training sends between machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.resident_plan import ASSUMED_ROW_BYTES
from peergraph.fullgraph.plan.sum_cost import SumCost
from peergraph.printing import format_bytes


@dataclass(frozen=True)
class NetworkBytes:
    """What the sums of an epoch send over the network.

    A row crosses the network once for each machine that needs it, and so does its gradient.

    Args:
        received, sent: bytes of each machine in an epoch; without a model, of a sum of 128 columns.
    """

    received: tuple[int, ...]
    sent: tuple[int, ...]

    @classmethod
    def of(cls, facts: GraphFacts, sums: Sequence[SumCost]) -> NetworkBytes | None:
        """Returns what the sums of a plan send between machines; None for one machine.

        Args:
            facts: counts of the graph.
            sums: of an epoch; none: a sum of 128 columns is counted.
        """
        if len(facts.machines) < 2:
            return None
        row_bytes = sum(s.count * s.row_bytes for s in sums) if sums else ASSUMED_ROW_BYTES
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
