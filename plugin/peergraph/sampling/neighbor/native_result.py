"""Draws of the compiled sampler: the arrays of a sample, their memory, and how they are cut into a
tensor for each type.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from peergraph import _C
from peergraph.memory.device.launching import Buffers, empty
from peergraph.sampling.neighbor.options import SeedTimes
from peergraph.sampling.neighbor.workspace import WorkspacePool

Type = TypeVar("Type", bound=Hashable)


class ResultCounts(NamedTuple):
    """The counts of a sample.

    Args:
        num_nodes: by type, seeds and new nodes of each hop.
        num_edges: by relation, edges of each hop.
        first_target, num_targets: by relation and hop.
    """

    num_nodes: list[list[int]]
    num_edges: list[list[int]]
    first_target: list[list[int]]
    num_targets: list[list[int]]


class ResultArrays:
    """The arrays of a sample, each with the values of all types, one after the other.

    The object is the callback by which the compiled module allocates all of them at once, when it
    knows their sizes.

    Args:
        device: of the arrays.
        index_dtype: of the edge index.
        edge_ids, batch, duplicates: whether there are such arrays; they are None if not.

    Attributes:
        nodes, batch, duplicates: of the nodes of all types. There are none before the call.
        edge_index: of all relations, the sources of each before its destinations.
        edge_ids: of all relations.
        offsets: of all hops, the `indptr` of all relations.
    """

    nodes: Tensor
    batch: Tensor | None
    duplicates: Tensor | None
    edge_index: Tensor
    edge_ids: Tensor | None
    offsets: Tensor

    def __init__(
        self,
        device: torch.device,
        index_dtype: torch.dtype,
        *,
        edge_ids: bool,
        batch: bool,
        duplicates: bool,
    ) -> None:
        self._device = device
        self._index_dtype = index_dtype
        self._returns = batch, duplicates, edge_ids

    def __call__(self, nodes: int, edges: int, offsets: int) -> tuple[int, ...]:
        """Allocates arrays of these sizes; returns their addresses, 0 where there is none."""
        device, (batch, duplicates, edge_ids) = self._device, self._returns
        self.nodes = empty(nodes, torch.int64, device)
        self.batch = empty(nodes, torch.int64, device) if batch else None
        self.duplicates = empty(nodes, torch.int32, device) if duplicates else None
        self.edge_index = empty(2 * edges, self._index_dtype, device)
        self.edge_ids = empty(edges, torch.int64, device) if edge_ids else None
        self.offsets = empty(offsets, torch.int64, device)
        arrays = self.nodes, self.batch, self.duplicates, self.edge_index, self.edge_ids
        addresses = [0 if array is None else array.data_ptr() for array in (*arrays, self.offsets)]
        return tuple(addresses)


def draw(
    native: _C.KHopSampler,
    workspaces: WorkspacePool,
    arrays: ResultArrays,
    seeds: list[tuple[int, Tensor]],
    seed: int,
    times: SeedTimes,
) -> ResultCounts:
    """Draws a sample into `arrays`.

    Args:
        seeds: index of a node type, and contiguous int64 user ids on the device.
    """
    with workspaces.borrow() as workspace:
        *counts, scratch_bytes = native.sample(
            seeds,
            seed,
            times.latest,
            times.earliest,
            workspace.node_maps,
            workspace.mailbox,
            workspace.scratch(),
            Buffers(workspaces.device),
            arrays,
            workspace.launch(),
        )
        workspace.expect_scratch(scratch_bytes)
    return ResultCounts(*counts)


def cut(array: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Cuts an array into tensors of these sizes.

    They share memory, but each has a version of its own: what is written to one of them makes no
    other invalid for a gradient.
    """
    if len(sizes) == 1:
        return [array]
    return [piece.data for piece in torch.split_with_sizes(array, list(sizes))]


def by_type(types: Iterable[Type], array: Tensor, sizes: Sequence[int]) -> dict[Type, Tensor]:
    """Returns the values of each type."""
    return dict(zip(types, cut(array, sizes), strict=True))


def ends_by_type(
    types: Sequence[Type], edge_index: Tensor, num_edges: Sequence[int]
) -> tuple[dict[Type, Tensor], dict[Type, Tensor]]:
    """Returns the sources and the destinations of the edges of each relation."""
    ends = cut(edge_index, [count for count in num_edges for _ in range(2)])
    row = dict(zip(types, ends[::2], strict=True))
    return row, dict(zip(types, ends[1::2], strict=True))


def indptr_by_type(
    types: Sequence[Type], offsets: Tensor, num_targets: list[list[int]]
) -> dict[Type, list[Tensor]]:
    """Returns the `indptr` of each relation and hop.

    Args:
        offsets: of all hops, one after the other.
        num_targets: by relation and hop.
    """
    hops = len(num_targets[0]) if num_targets else 0
    sizes = [of_type[hop] + 1 for hop in range(hops) for of_type in num_targets]
    pieces = cut(offsets, sizes) if sizes else []
    return {t: list(pieces[r :: len(types)]) for r, t in enumerate(types)}
