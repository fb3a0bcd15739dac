"""Negatives that a time admits: nodes of a window of time of each positive."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from peergraph.sampling.arguments import check_integer_vector
from peergraph.sampling.sample import NodeType

if TYPE_CHECKING:
    from peergraph.memory import Table
    from peergraph.store import Store

_TIME_DTYPES = (torch.int32, torch.int64)
# Candidates of a negative in each round of rejection; what is left is drawn by reading all times.
_ROUNDS = (1, 4, 16, 64, 256)
_ROWS_AT_ONCE = 1 << 24


class NodeWindows:
    """For each positive, the nodes whose time is in its window: ``earliest <= time <= latest``.

    Args:
        store: the graph.
        node_type: of the nodes.
        node_time: name of a node table of one int32 or int64 column.
        latest: [P] int32 or int64, the last time that each positive admits.
        earliest: [P] int32 or int64, the first one; None: no limit.

    Raises:
        TypeError, ValueError: times of other dtypes or shapes.

    Example::

        windows = NodeWindows(store, "item", "time", latest=link_time)
        in_batch_negatives(source, destination, 8, seed, num_nodes=items, windows=windows)
    """

    def __init__(
        self,
        store: Store,
        node_type: NodeType,
        node_time: str,
        latest: Tensor,
        earliest: Tensor | None = None,
    ) -> None:
        self._table: Table = store.node_table(node_time, node_type)
        if self._table.dtype not in _TIME_DTYPES or tuple(self._table.shape[1:]) not in ((), (1,)):
            raise TypeError(
                f"node_time: expected {node_time!r} to have one column of int32 or int64, "
                f"got {self._table.dtype} {list(self._table.shape)}"
            )
        self.latest = check_integer_vector("latest", latest).long().contiguous()
        if earliest is None:
            self.earliest = torch.full_like(self.latest, torch.iinfo(torch.int64).min)
        else:
            self.earliest = check_integer_vector("earliest", earliest).long().contiguous()
        if self.earliest.shape != self.latest.shape:
            raise ValueError(
                f"earliest: expected {self.latest.numel()} times as latest, "
                f"got {self.earliest.numel()}"
            )

    def to(self, device: torch.device) -> NodeWindows:
        """Returns the windows with their ends on another device."""
        moved = copy.copy(self)
        moved.latest, moved.earliest = self.latest.to(device), self.earliest.to(device)
        return moved

    def times_of(self, nodes: Tensor) -> Tensor:
        """Returns the times of nodes, int64 with their shape and on their device."""
        times = self._table.gather(nodes.to(self._table.device))
        return times.view(nodes.shape).to(nodes.device, torch.int64)

    def admit(self, times: Tensor) -> Tensor:
        """Returns for times ``[P, n]`` whether they are in the window of the row's positive."""
        return (times >= self.earliest[:, None]) & (times <= self.latest[:, None])

    def draw(
        self,
        positives: Tensor,
        draw_nodes: Callable[[int], Tensor],
        weights: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws a node for each of some positives, as `draw_nodes` does among the nodes that the
        positive admits. A positive that admits no node gets the node with the least time, as in
        PyG.

        Nodes are drawn until one is admitted, at most 341 times. Then the times of all nodes are
        read.

        Args:
            positives: [n] places of positives in ``latest``.
            draw_nodes: returns so many independent random nodes.
            weights: [nodes] by which `draw_nodes` draws; None: all alike.
            generator: of the CPU, for the draws after all times are read.
        """
        drawn = torch.zeros_like(positives)
        left = torch.arange(positives.numel(), device=positives.device)
        for tries in _ROUNDS:
            if not left.numel():
                break
            nodes = draw_nodes(left.numel() * tries).to(left.device).view(-1, tries)
            at, times = positives[left][:, None], self.times_of(nodes)
            fits = (times >= self.earliest[at]) & (times <= self.latest[at])
            drawn[left] = nodes.gather(1, fits.int().argmax(1, keepdim=True)).view(-1)
            left = left[~fits.any(1)]
        if left.numel():
            drawn[left] = self._draw_among_all(positives[left], weights, generator)
        return drawn

    def _draw_among_all(
        self, positives: Tensor, weights: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        earliest, latest = self.earliest[positives], self.latest[positives]
        nodes, times, oldest = self._nodes_by_time(earliest.min(), latest.max())
        if not nodes.numel():
            return oldest.expand(positives.shape)
        masses = torch.ones_like(nodes) if weights is None else weights.to(nodes.device)[nodes]
        sums = torch.nn.functional.pad(masses.double().cumsum(0), (1, 0))
        begin = torch.searchsorted(times, earliest)
        end = torch.searchsorted(times, latest, right=True).maximum(begin)
        low, high = sums[begin], sums[end]
        numbers = torch.rand(
            positives.shape, generator=generator, dtype=torch.float64, device="cpu"
        ).to(low.device)
        # `right=True`, so that nodes of weight zero are never drawn.
        place = torch.searchsorted(sums, low + numbers * (high - low), right=True) - 1
        place = place.minimum(end - 1).clamp(min=0)
        return torch.where(high > low, nodes[place], oldest)

    def _nodes_by_time(self, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the nodes with times ``first .. last``, by time, their times, and the node with
        the least time of all.
        """
        device, rows = first.device, self._table.rows
        parts, oldest = [], []
        for start in range(0, rows, _ROWS_AT_ONCE):
            nodes = torch.arange(start, min(start + _ROWS_AT_ONCE, rows), device=device)
            times = self.times_of(nodes)
            inside = (times >= first) & (times <= last)
            parts.append((nodes[inside], times[inside]))
            oldest.append((nodes[times.argmin()], times.min()))
        nodes, times = (torch.cat(values) for values in zip(*parts, strict=True))
        order = times.argsort(stable=True)
        least_nodes, least_times = (torch.stack(values) for values in zip(*oldest, strict=True))
        return nodes[order], times[order], least_nodes[least_times.argmin()]
