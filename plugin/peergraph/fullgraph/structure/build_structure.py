"""The structure of a relation, from edges in the user's ids."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.side_by_side import Gather, Steps, run_alone
from peergraph.fullgraph.layout.edge_share import EdgeShare, Share, UnreadShare
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.structure.edge_delivery import EdgeDelivery
from peergraph.fullgraph.structure.neighbor_sums import ModeChoice
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc


def build_structure(
    sources: RowLayout,
    destinations: RowLayout,
    share: Share,
    mode: ModeChoice | None = None,
) -> PartitionedCsc:
    """Runs :func:`structure_steps` alone. Collective; synchronises."""
    steps = structure_steps(sources, destinations, share, mode)
    return run_alone(destinations.group, steps)


def structure_steps(
    sources: RowLayout,
    destinations: RowLayout,
    share: Share,
    mode: ModeChoice | None = None,
    *,
    ids_on_host: bool = False,
) -> Steps[PartitionedCsc]:
    """Sends each edge to the rank of its destination. Collective; synchronises.

    The edges of a destination are in the user's order. At rest the structure takes 4 bytes for each
    edge and 8 for each node; while it is built, 30 more for each node, and the memory of one piece
    of edges. The user's ids of edges, 8 bytes each, are kept where the share holds its edges; those
    of an :class:`UnreadShare` are read again when they are needed.

    Args:
        sources, destinations: the rows of nodes.
        share: this rank's edges; shares of all ranks are all edges.
        mode: see :class:`PartitionedCsc`.
        ids_on_host: whether the user's ids of edges are in host memory until a tensor of edges
            asks for them, in 4 bytes each if they fit.
    """
    group = destinations.group
    numbers = _InternalRows(sources, destinations)

    def destination(number: int) -> Tensor:
        return numbers.of(destinations, share.piece(number).destination)

    def source(number: int) -> Tensor:
        return numbers.of(sources, share.piece(number).source)

    def edge_ids(number: int) -> Tensor:
        return share.piece(number).edge_ids

    def deliver_ids() -> Tensor:
        ids_by_edge = torch.empty(delivery.num_edges, dtype=torch.int64, device=group.device)
        run_alone(group, delivery.deliver([edge_ids], [ids_by_edge]))
        release()
        return ids_by_edge

    def release() -> None:
        numbers.release()
        if isinstance(share, UnreadShare):
            share.release()

    delivery = yield from EdgeDelivery.steps(destinations, share.num_pieces, destination)
    if isinstance(share, EdgeShare):
        ids = torch.empty(delivery.num_edges, dtype=torch.int64, device=group.device)
        plan, local = yield from delivery.deliver_sources(sources, source, [(edge_ids, ids)])
        counts = yield Gather(local.num_edges)
        if ids_on_host and group.device.type != "cpu":
            host_ids = (ids.int() if sum(counts) < 2**31 else ids).cpu()
            edge_layout = RowLayout(group, counts, lambda: host_ids.to(group.device).long())
        else:
            edge_layout = RowLayout(group, counts, ids)
    else:
        plan, local = yield from delivery.deliver_sources(sources, source)
        edge_layout = RowLayout(group, (yield Gather(local.num_edges)), deliver_ids)
    release()
    return PartitionedCsc(sources, destinations, edge_layout, plan, local, mode)


class _InternalRows:
    """Internal rows of nodes on the device, in 4 bytes if all fit."""

    def __init__(self, *layouts: RowLayout) -> None:
        self._layouts = {id(layout): layout for layout in layouts}
        self._rows: dict[int, Tensor] = {}

    def of(self, layout: RowLayout, ids: Tensor) -> Tensor:
        """Returns the internal rows of the user's ids."""
        key = id(layout)
        if key not in self._rows:
            rows = self._layouts[key].internal_rows
            narrow = rows.int() if layout.size < 2**31 - 1 else rows
            self._rows[key] = narrow.to(layout.group.device)
        return self._rows[key][ids.long()]

    def release(self) -> None:
        """Frees the rows until they are needed again."""
        self._rows.clear()
