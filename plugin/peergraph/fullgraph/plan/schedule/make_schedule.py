"""The passes of an epoch by the type of the layers, from a dry run of a model on shapes.

Where a layer's sum needs nothing but its result (GCN, SAGE, GIN), the result is kept for the
backward pass; with attention, the backward pass computes the layer again (HongTu 4.2). The last
layer is computed for labelled nodes only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from peergraph.fullgraph.plan.schedule.attention import AttentionSchedule
from peergraph.fullgraph.plan.schedule.gates import schedule_gates
from peergraph.fullgraph.plan.schedule.schedule import Schedule
from peergraph.fullgraph.plan.schedule.sums import SumSchedule

LAYER_TYPES = ("gcn", "sage", "gin", "ggnn")
"""Layers that sum, by what they need besides their sums."""


def make_schedule(
    widths: Sequence[int],
    heads: int = 0,
    labelled: float = 1.0,
    layer_type: str = "gcn",
    summed_again: Collection[int] = (),
) -> Schedule:
    """Returns the passes of an epoch of a model.

    The last layer's rows are computed for labelled nodes only, and never stored.

    Args:
        widths: columns of the input and of each layer's output.
        heads: of attention, by which all layers weight their edges; 0: layers that sum.
        labelled: share of the nodes that the loss is computed of.
        layer_type: one of :data:`LAYER_TYPES`, of layers that sum.
        summed_again: see :class:`SumSchedule`; none of other layers.
    """
    if heads:
        return AttentionSchedule(widths, heads, labelled).make()
    if layer_type == "ggnn":
        return schedule_gates(widths, labelled)
    return SumSchedule(widths, labelled, layer_type, summed_again).make()
