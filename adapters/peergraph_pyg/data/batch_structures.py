"""The structures of a batch's edge indices, which its loader attaches to them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import count, repeat
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from peergraph.aggregate import Csc

from .contents import Contents


class BatchStructure(Protocol):
    """The structure of a batch's edge index, which the batch's loader knows."""

    def csc(self, edge_index: Tensor, num_destinations: int, num_sources: int) -> Csc | None:
        """Returns the structure of the first edges, or None where it is not known."""
        ...

    def num_destinations(self, num_edges: int) -> int | None:
        """Returns the number of rows up to the last one at which any of the first edges may end,
        whatever they are; None where it is not known.
        """
        ...

    def num_rows_with_edges(self, num_edges: int) -> int | None:
        """Returns the number of rows at which any of the first edges end; None where it is not
        known. Waits for the current stream of a GPU, at the first call for a batch.
        """
        ...

    def min_rows_with_edges(self, num_edges: int) -> int:
        """Returns a lower bound of :meth:`num_rows_with_edges`. Does not synchronise."""
        ...

    def tensors(self) -> list[Tensor]:
        """Returns the tensors on the device."""
        ...


class Batch:
    """The edge indices of a batch, which are on one device, and their structures.

    Args:
        edge_indices: of one device, with edges.
        structures: makes the structure of one of them. A model may use few of hundreds.
        ready: an event that a GPU reaches after the kernels that write the edge indices; None:
            these have been launched in the current stream.
    """

    def __init__(
        self,
        edge_indices: Sequence[Tensor],
        structures: Callable[[int], BatchStructure],
        ready: torch.cuda.Event | None = None,
    ) -> None:
        device = edge_indices[0].device
        self.contents = Contents(edge_indices)
        self.ready = ready
        """On a GPU: an event after the kernels that write the edge indices."""
        if ready is None and device.type == "cuda":
            self.ready = torch.cuda.current_stream(device).record_event()
        self.joined: dict[Hashable, Any] = {}
        """What was made of several edge indices, or of slices of them."""
        self.references = list(map(weakref.ref, edge_indices))
        self._structures = structures
        self._by_position: dict[int, BatchStructure] = {}
        self._places = list(map(Tensor.data_ptr, edge_indices))
        _attached.update(zip(self._places, zip(repeat(self), count()), strict=False))
        self._await_end()

    def attachment(self, position: int) -> Attachment:
        """Returns what is attached to one of the edge indices, equal at each call."""
        if position not in self._by_position:
            self._by_position[position] = self._structures(position)
        return Attachment(self, position, self._by_position[position])

    def _await_end(self) -> None:
        """Removes the batch's entries once all of its edge indices have been freed."""
        for reference in reversed(self.references):
            edge_index = reference()
            if edge_index is not None:
                self._end = weakref.ref(edge_index, partial(_await_next_end, weakref.ref(self)))
                return
        for place in self._places:
            if place in _attached and _attached[place][0] is self:  # a later batch may be there
                del _attached[place]


def _await_next_end(batch: weakref.ref[Batch], _: weakref.ref[Tensor]) -> None:
    of_batch = batch()
    if of_batch is not None:
        of_batch._await_end()


class Attachment(NamedTuple):
    """A batch's structure, and the place of its edge index among those of the batch."""

    batch: Batch
    position: int
    structure: BatchStructure


# By the address of an edge index: its batch, and its position there. Slices that compiled code
# makes do not know which tensor they are views of, but have its address. Entries may be of edge
# indices that have been freed.
_attached: dict[int, tuple[Batch, int]] = {}


def attach(
    edge_indices: Sequence[Tensor],
    structures: Callable[[int], BatchStructure],
    ready: torch.cuda.Event | None = None,
) -> None:
    """Attaches the structures of a batch to its edge indices, for as long as nothing changes them.

    Args:
        edge_indices: of one device, with edges.
        structures: makes the structure of the edge index at a position.
        ready: as of :class:`Batch`.
    """
    if edge_indices:
        Batch(edge_indices, structures, ready)


def attached(edge_index: Tensor) -> BatchStructure | None:
    """Returns the structure that a loader attached, if the edges are what they were then.

    Args:
        edge_index: of a batch, or a slice of its first edges. Sparse tensors have none.
    """
    attachment, _ = attachment_of(edge_index)
    return None if attachment is None else attachment.structure


def attachment_of(edge_index: Tensor) -> tuple[Attachment | None, Tensor]:
    """Returns what is attached to an edge index, and its edges: of one on the CPU, a private copy.

    Args:
        edge_index: see :func:`attached`.
    """
    attachment = attachment_at(edge_index)
    whole = None if attachment is None else _whole(attachment, edge_index)
    if attachment is None or whole is None:
        return None, edge_index
    contents, position = attachment.batch.contents, attachment.position
    copy = contents.copy_of(position)
    if copy is None:
        return attachment if contents.match([whole], [position]) else None, edge_index
    edges = copy[:, : edge_index.shape[1]]
    return (attachment, edges) if torch.equal(edge_index, edges) else (None, edge_index)


def attachments_of(edge_indices: Sequence[Tensor]) -> list[Attachment | None] | None:
    """Returns what is attached to each edge index; None unless all have something attached.

    Those without edges need nothing, and may have None. A GPU compares the edges of a batch by one
    launch, or a few.

    Args:
        edge_indices: each as for :func:`attached`.
    """
    attachments: list[Attachment | None] = []
    # By batch: the edge indices that were attached, and their positions.
    by_batch: dict[int, tuple[Batch, list[Tensor], list[int]]] = {}
    for edge_index in edge_indices:
        attachment = attachment_at(edge_index)
        if attachment is None:
            if edge_index.layout == torch.strided and edge_index.shape == (2, 0):
                attachments.append(None)
                continue
            return None
        whole = _whole(attachment, edge_index)
        if whole is None:
            return None
        attachments.append(attachment)
        batch, position = attachment.batch, attachment.position
        copy = batch.contents.copy_of(position)
        if copy is None:
            _, tensors, positions = by_batch.setdefault(id(batch), (batch, [], []))
            tensors.append(whole)
            positions.append(position)
        elif not torch.equal(edge_index, copy[:, : edge_index.shape[1]]):
            return None
    unchanged = all(
        batch.contents.match(tensors, positions) for batch, tensors, positions in by_batch.values()
    )
    return attachments if any(attachments) and unchanged else None


def attachment_at(edge_index: Tensor) -> Attachment | None:
    """Returns what is attached at the address of an edge index, whose values may have changed."""
    if not _attached or type(edge_index) is not Tensor or edge_index.layout != torch.strided:
        return None
    if edge_index.dim() != 2 or edge_index.shape[0] != 2 or edge_index.is_inference():
        return None
    place = edge_index.data_ptr() or _place_without_edges(edge_index)
    batch, position = _attached.get(place, (None, 0))
    if batch is None or batch.references[position]() is None:
        return None
    return batch.attachment(position)


def _place_without_edges(edge_index: Tensor) -> int:
    """Returns the address of a slice without edges, whose `data_ptr` is 0."""
    offset = int(edge_index.storage_offset()) * edge_index.element_size()
    return int(edge_index.untyped_storage().data_ptr()) + offset


def row_counter(
    attachments: Sequence[Attachment | None] | None,
    edge_indices: Sequence[Tensor],
    *,
    exact: bool = True,
) -> Callable[[int], int | None] | None:
    """Returns a function that takes the position of an edge index, and returns the number of rows
    at which its edges end, or None if that is not known. Returns None without any attachments.

    Args:
        attachments: of the edge indices, as :func:`attachments_of` returns them.
        exact: False: a lower bound of the number, for which the host does not wait for a GPU.
    """
    if attachments is None:
        return None

    def count(position: int) -> int | None:
        attachment, num_edges = attachments[position], edge_indices[position].shape[1]
        if attachment is None:
            return 0
        structure = attachment.structure
        of_edges = structure.num_rows_with_edges if exact else structure.min_rows_with_edges
        return of_edges(num_edges)

    return count


def _whole(attachment: Attachment, edge_index: Tensor) -> Tensor | None:
    """Returns the edge index that a structure is attached to, if it is still there and has the
    strides and the dtype of the one at its place.
    """
    whole = attachment.batch.references[attachment.position]()
    if whole is None or edge_index.stride() != whole.stride() or edge_index.dtype != whole.dtype:
        return None
    return whole


def device_tensors(edge_index: Tensor) -> list[Tensor]:
    """Returns the tensors of an attached structure, which change streams with the batch."""
    attachment = attachment_at(edge_index)
    return [] if attachment is None else attachment.structure.tensors()
