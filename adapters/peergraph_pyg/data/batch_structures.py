"""The structures of a batch's edge indices, which its loader attaches to them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from peergraph.aggregate import Csc

from ..compat import memory_of
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

    def tensors(self) -> list[Tensor]:
        """Returns the tensors on the device."""
        ...


class _Batch(NamedTuple):
    """What the edge indices of a batch have in common."""

    contents: Contents
    ready: torch.cuda.Event | None
    """On a GPU: recorded when the kernels that write the edge indices have been launched."""


class Attachment(NamedTuple):
    """A batch's structure and the edge index that it belongs to."""

    reference: weakref.ref[Tensor]
    batch: _Batch
    position: int
    """Of the edge index among those of the batch."""
    structure: BatchStructure


# By the place of the edge index in memory; an entry is removed with its edge index. Compiled code
# makes slices that do not know which tensor they are a view of.
_attached: dict[tuple[int, int], Attachment] = {}


def attach(pairs: Sequence[tuple[Tensor, BatchStructure]]) -> None:
    """Attaches the structures of a batch to its edge indices, for as long as nothing changes them.

    Args:
        pairs: the edge indices, all on one device, and their structures.
    """
    if not pairs:
        return
    device = pairs[0][0].device
    ready = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
    batch = _Batch(Contents([edge_index for edge_index, _ in pairs]), ready)
    for position, (edge_index, structure) in enumerate(pairs):
        key = _place_of(edge_index)
        reference = weakref.ref(edge_index, partial(_detach, key))
        _attached[key] = Attachment(reference, batch, position, structure)


def _detach(key: tuple[int, int], reference: weakref.ref[Tensor]) -> None:
    # A later batch may have the same memory.
    if key in _attached and _attached[key].reference is reference:
        del _attached[key]


def _place_of(edge_index: Tensor) -> tuple[int, int]:
    """Returns what an edge index and slices of its first edges have in common."""
    return memory_of(edge_index), int(edge_index.storage_offset())


def attached(edge_index: Tensor) -> BatchStructure | None:
    """Returns the structure that a loader attached, if the edges are what they were then.

    Args:
        edge_index: of a batch, or a slice of its first edges. Sparse tensors have none.
    """
    attachment, _ = attachment_of(edge_index)
    return None if attachment is None else attachment.structure


def attachment_of(edge_index: Tensor) -> tuple[Attachment | None, Tensor]:
    """Returns what is attached to an edge index, and edges that nobody changes if it is on the CPU.

    Args:
        edge_index: see :func:`attached`.
    """
    attachments = attachments_of([edge_index])
    if attachments is None:
        return None, edge_index
    [attachment] = attachments
    copy = attachment.batch.contents.copies[attachment.position]
    return attachment, edge_index if copy is None else copy[:, : edge_index.shape[1]]


def attachments_of(edge_indices: Sequence[Tensor]) -> list[Attachment] | None:
    """Returns what is attached to each edge index; None unless all have something attached.

    Those without edges need nothing. A GPU compares the edges of a batch by one launch, or a few.

    Args:
        edge_indices: each as for :func:`attached`.
    """
    attachments = []
    # By batch: the edge indices that were attached, and their positions.
    by_batch: dict[int, tuple[_Batch, list[Tensor], list[int]]] = {}
    for edge_index in edge_indices:
        attachment = attachment_at(edge_index)
        whole = None if attachment is None else attachment.reference()
        if attachment is None or whole is None:
            if edge_index.layout == torch.strided and edge_index.shape == (2, 0):
                continue
            return None
        if edge_index.stride() != whole.stride() or edge_index.dtype != whole.dtype:
            return None
        attachments.append(attachment)
        batch, position = attachment.batch, attachment.position
        copy = batch.contents.copies[position]
        if copy is None:
            _, tensors, positions = by_batch.setdefault(id(batch), (batch, [], []))
            tensors.append(whole)
            positions.append(position)
        elif not torch.equal(edge_index, copy[:, : edge_index.shape[1]]):
            return None
    unchanged = all(
        batch.contents.match(tensors, positions) for batch, tensors, positions in by_batch.values()
    )
    return attachments if attachments and unchanged else None


def attachment_at(edge_index: Tensor) -> Attachment | None:
    """Returns what is attached to the place of an edge index, whatever is there now."""
    if not _attached or edge_index.dim() != 2 or edge_index.shape[0] != 2:
        return None
    if edge_index.is_inference() or edge_index.layout != torch.strided:
        return None
    return _attached.get(_place_of(edge_index))


def device_tensors(edge_index: Tensor) -> list[Tensor]:
    """Returns the tensors of an attached structure, which change streams with the batch."""
    attachment = attachment_at(edge_index)
    return [] if attachment is None else attachment.structure.tensors()
