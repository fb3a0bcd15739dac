"""`ExcludeTargets`: removes the links that a model is to predict from their batch."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from peergraph.sampling import edges_between
from peergraph.store import EdgeType


@dataclass(frozen=True)
class ExcludeTargets:
    """Removes target links from a batch, so that the model does not see them (DGL's ``exclude``).

    Pass it to a link loader as ``transform_sampler_output``. All sampled edges between the two ends
    of a positive link are removed, parallel ones too; nodes stay, and negatives change nothing. In
    a disjoint batch, a link is removed from the trees of its two ends only. Runs on the sample's
    device and synchronises a few times.

    Args:
        edge_type: the edge type of the target links, in a graph with types.
        reverse: whether to remove the edges of the opposite direction too: True in a graph without
            types, else their edge type.

    Raises:
        ValueError: the batch does not have the edge type; no edge type is given, and the batch has
            types; or the batch is not from a link loader.
    """

    edge_type: EdgeType | None = None
    reverse: bool | EdgeType = False

    def __call__(self, out: Any) -> Any:
        """Returns a copy of the sampler's output without the target links."""
        typed = isinstance(out.row, dict)
        links = self.links(out.metadata, list(out.row) if typed else None)
        out = copy.copy(out)
        if typed:
            for name in ("row", "col", "edge", "num_sampled_edges"):
                value = getattr(out, name)
                setattr(out, name, None if value is None else dict(value))
        for key, begin, end in links:
            _remove(out, key, begin, end)
        return out

    def links(
        self, metadata: Any, edge_types: list[EdgeType] | None
    ) -> list[tuple[EdgeType | None, Tensor, Tensor]]:
        """Returns the edges that are removed from a batch: edge types (None: there are no types),
        and rows of the sources and of the destinations.

        Args:
            metadata: of the sampler's output.
            edge_types: of the batch; None: it has no types.
        """
        sources, targets = _positives(metadata)
        links = [(_checked("edge_type", self.edge_type, edge_types), sources, targets)]
        if self.reverse is not False:
            links.append((_checked("reverse", self.reverse, edge_types), targets, sources))
        return links


def _checked(name: str, key: Any, edge_types: list[EdgeType] | None) -> EdgeType | None:
    if edge_types is None:
        return None
    if not isinstance(key, tuple) or key not in edge_types:
        raise ValueError(f"{name} must be one of the edge types {edge_types}, got {key!r}")
    return key


def _positives(metadata: Any) -> tuple[Tensor, Tensor]:
    """Returns the rows of sources and destinations of the positive links."""
    if not isinstance(metadata, tuple) or len(metadata) < 4:
        raise ValueError("transform_sampler_output: expected a batch of a link loader")
    if len(metadata) > 4:  # triplets
        return metadata[1], metadata[2]
    index = metadata[1][:, : len(metadata[0])]
    return index[0], index[1]


def _remove(out: Any, key: EdgeType | None, begin: Tensor, end: Tensor) -> None:
    if begin.numel() == 0:
        return
    stays = ~_connects_target(out, key, begin, end)
    for name in ("row", "col", "edge"):
        value = _by_type(getattr(out, name), key)
        if value is not None:
            _set_by_type(out, name, key, value[stays])
    counts = _by_type(out.num_sampled_edges, key)
    if counts is not None:
        before = torch.cat([stays.new_zeros(1, dtype=torch.int64), stays.cumsum(0)])
        left = before[torch.tensor([0, *accumulate(counts)], device=stays.device)].tolist()
        _set_by_type(out, "num_sampled_edges", key, [b - a for a, b in pairwise(left)])


def _connects_target(out: Any, key: EdgeType | None, begin: Tensor, end: Tensor) -> Tensor:
    """Returns whether each edge connects the two ends of a link."""
    row, col = _by_type(out.row, key), _by_type(out.col, key)
    first, second = (None, None) if key is None else (key[0], key[2])
    sources, destinations = _by_type(out.node, first), _by_type(out.node, second)
    begin, end = begin.to(row.device), end.to(row.device)
    links = torch.stack([sources[begin], destinations[end]])
    if out.batch is not None:
        source_trees, destination_trees = _by_type(out.batch, first), _by_type(out.batch, second)
        # A source id for each node of each tree. For some amounts of negatives, PyG puts the two
        # ends into different trees: the link is then removed from both.
        source_labels = torch.unique(sources, return_inverse=True)[1]
        sources = source_trees * len(sources) + source_labels
        links = torch.stack(
            [
                trees * len(sources) + source_labels[begin]
                for trees in (source_trees[begin], destination_trees[end])
            ]
        )
        links = torch.stack([links.flatten(), destinations[end].repeat(2)])
    return edges_between(row, col, sources, destinations, links)


def _by_type(value: Any, key: Any) -> Any:
    return value.get(key) if isinstance(value, dict) else value


def _set_by_type(out: Any, name: str, key: EdgeType | None, value: Any) -> None:
    if key is None:
        setattr(out, name, value)
    else:
        getattr(out, name)[key] = value
