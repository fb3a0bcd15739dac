"""Draws of the compiled sampler: the arrays of a sample, their memory, and how they are cut into a
tensor for each type.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from peergraph import _C
from peergraph.memory.device.launching import Buffers, empty
from peergraph.sampling.lazy_dict import LazyDict
from peergraph.sampling.neighbor.options import SeedTimes
from peergraph.sampling.neighbor.workspace import WorkspacePool
from peergraph.sampling.sample import EdgeType, NodeType, Sample, SampleArrays

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
        ready: as that of :class:`SampleArrays`.
    """

    nodes: Tensor
    batch: Tensor | None
    duplicates: Tensor | None
    edge_index: Tensor
    edge_ids: Tensor | None
    offsets: Tensor
    ready: torch.cuda.Event | None = None

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

    @classmethod
    def of(
        cls,
        nodes: Tensor,
        batch: Tensor | None,
        duplicates: Tensor | None,
        edge_index: Tensor,
        edge_ids: Tensor | None,
        offsets: Tensor,
    ) -> ResultArrays:
        """Returns arrays that a thread has allocated."""
        arrays = cls.__new__(cls)
        arrays.nodes, arrays.batch, arrays.duplicates = nodes, batch, duplicates
        arrays.edge_index, arrays.edge_ids, arrays.offsets = edge_index, edge_ids, offsets
        return arrays

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
    return [array] if len(sizes) == 1 else torch.unsafe_split_with_sizes(array, list(sizes))


def by_type(types: Iterable[Type], array: Tensor, sizes: Sequence[int]) -> dict[Type, Tensor]:
    """Returns the values of each type."""
    return dict(zip(types, cut(array, sizes), strict=True))


def to_sample(
    node_types: Sequence[NodeType],
    edge_types: Sequence[EdgeType],
    arrays: ResultArrays,
    counts: ResultCounts,
) -> Sample:
    """Returns the sample with these arrays and counts."""
    num_nodes = [sum(of_type) for of_type in counts.num_nodes]
    num_edges = [sum(of_type) for of_type in counts.num_edges]

    def of_nodes(array: Tensor | None) -> dict[NodeType, Tensor] | None:
        return None if array is None else by_type(node_types, array, num_nodes)

    edge_index, offsets, edge_ids = arrays.edge_index, arrays.offsets, arrays.edge_ids
    ends = cache(lambda: cut(edge_index, [count for count in num_edges for _ in range(2)]))
    sample = Sample(
        nodes=by_type(node_types, arrays.nodes, num_nodes),
        row=LazyDict(lambda: dict(zip(edge_types, ends()[::2], strict=True))),
        col=LazyDict(lambda: dict(zip(edge_types, ends()[1::2], strict=True))),
        edge_ids=None if edge_ids is None else by_type(edge_types, edge_ids, num_edges),
        batch=of_nodes(arrays.batch),
        duplicate_counts=of_nodes(arrays.duplicates),
        num_sampled_nodes=dict(zip(node_types, counts.num_nodes, strict=True)),
        num_sampled_edges=dict(zip(edge_types, counts.num_edges, strict=True)),
        indptr=LazyDict(lambda: _indptr_by_type(edge_types, offsets, counts.num_targets)),
        first_target=dict(zip(edge_types, counts.first_target, strict=True)),
    )
    sample.arrays = SampleArrays(edge_index, offsets, arrays.ready)
    return sample


def _indptr_by_type(
    types: Sequence[EdgeType], offsets: Tensor, num_targets: list[list[int]]
) -> dict[EdgeType, list[Tensor]]:
    """Returns the `indptr` of each relation and hop.

    Args:
        offsets: of all hops, one after the other.
        num_targets: by relation and hop.
    """
    hops = len(num_targets[0]) if num_targets else 0
    sizes = [of_type[hop] + 1 for hop in range(hops) for of_type in num_targets]
    pieces = cut(offsets, sizes) if sizes else []
    return {t: list(pieces[r :: len(types)]) for r, t in enumerate(types)}
