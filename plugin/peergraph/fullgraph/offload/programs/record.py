"""Records of operations: the call and its operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from peergraph.fullgraph.layout.content_digest import PendingDigest, content_digests
from peergraph.fullgraph.layout.ranks import Ranks
from peergraph.fullgraph.offload.tensor.offloaded_tensor import Cell, Content, OffloadedTensor
from peergraph.fullgraph.offload.tensor.operations import Operation, Slot
from peergraph.fullgraph.offload.tensor.row_space import RowSpace
from peergraph.fullgraph.random.seeds import Seed
from peergraph.fullgraph.tensor.arguments import require_dense
from peergraph.fullgraph.tensor.chunk_rows import partitioned
from peergraph.fullgraph.tensor.nested import map_nested
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap


class RowOperand(NamedTuple):
    """Rows of an offloaded tensor, chunk by chunk."""

    cell: Cell
    handle: OffloadedTensor | None
    """The tensor whose node of autograd gets the gradient; None: see :attr:`identity`."""

    @property
    def content(self) -> Content:
        """The rows."""
        return self.cell.content

    @property
    def identity(self) -> OffloadedTensor | None:
        """The tensor whose autograd node gets the gradient; None: the record is differentiated."""
        # The tensor may have another node by now, that of the rows that it got in place.
        return self.handle if self.cell.identity is None else self.cell.identity


class SourceOperand(NamedTuple):
    """Rows of sources that the edges to a chunk need."""

    rows: RowOperand
    structure: Any
    """The edges: a ChunkedCsc."""


class EdgesOperand(NamedTuple):
    """The edges to a chunk."""

    structure: Any
    """A ChunkedCsc."""
    in_window: bool = False
    """Whether the numbers of sources are positions among the source rows that the pass adds to."""


class ResidentOperand(NamedTuple):
    """A partitioned tensor that is on the device, chunk by chunk."""

    tensor: PartitionedTensor
    space: RowSpace
    digest: PendingDigest | None
    """Of this rank's rows at the time of the record, see :class:`PendingDigest`; None: nothing else
    has the rows, which cannot change."""

    @classmethod
    def of(cls, tensor: PartitionedTensor, space: RowSpace) -> ResidentOperand:
        """Returns an operand with the rows that `tensor` has now."""
        return cls(tensor, space, PendingDigest(tensor._local))


class PlainOperand(NamedTuple):
    """A tensor that is equal on all ranks."""

    tensor: Tensor
    values: Tensor
    """A copy from the time of the record. No copy is kept from one record to another: optimizers
    and writes through ``tensor.data`` change a tensor without a trace."""
    memory: Tensor
    """The memory of the tensor. Autograd, which saves tensors, reads it in the backward pass."""
    version: int
    """Of the memory at the time of the record."""
    owner: ref[Tensor]
    """The tensor, as long as it is in use."""

    @classmethod
    def of(cls, tensor: Tensor) -> PlainOperand:
        """Returns an operand with the values that `tensor` has now.

        Raises:
            NotImplementedError: the tensor is sparse.
        """
        require_dense("a function of offloaded rows", tensor)
        with torch.inference_mode(False), torch.no_grad():
            memory = distinct_values(tensor.detach())
            values = memory.clone().expand(tensor.shape)
        version = 0 if memory.is_inference() else memory._version
        return cls(tensor, values, memory, version, ref(tensor))

    @property
    def is_changed(self) -> bool:
        """Whether torch counted a write, or ``tensor.data = ...`` gave the tensor other memory."""
        owner, memory = self.owner(), self.memory
        if memory.is_inference() or memory.layout != torch.strided:
            return False
        is_replaced = owner is not None and (
            owner.untyped_storage()._cdata != memory.untyped_storage()._cdata
        )
        return is_replaced or memory._version != self.version

    @property
    def has_other_values(self) -> bool:
        """Whether the tensor has other values now. The host waits for the device."""
        recorded, now = content_digests([distinct_values(self.values), self.memory])
        return recorded != now


def distinct_values(tensor: Tensor) -> Tensor:
    """Returns a view of a tensor without the values that an expanded tensor repeats."""
    if tensor.layout == torch.strided:
        for dim, step in enumerate(tensor.stride()):
            if step == 0 and tensor.shape[dim] > 1:
                tensor = tensor.narrow(dim, 0, 1)
    return tensor


Operand = RowOperand | SourceOperand | EdgesOperand | ResidentOperand | PlainOperand


def without_history(operand: Operand) -> Operand:
    """Returns the operand detached: the same rows or values, to which no gradients flow."""
    if isinstance(operand, SourceOperand):
        rows = without_history(operand.rows)
        assert isinstance(rows, RowOperand)
        return SourceOperand(rows, operand.structure)
    if isinstance(operand, RowOperand):
        return (
            operand if operand.identity is None else RowOperand(Cell(operand.content, False), None)
        )
    if isinstance(operand, EdgesOperand) or not operand.tensor.requires_grad:
        return operand
    tensor = operand.tensor
    if isinstance(operand, PlainOperand):
        return operand._replace(tensor=tensor.detach())
    assert isinstance(tensor, PartitionedTensor)
    rows_alone = wrap(tensor._local, tensor.row_layout, tensor.partitioned_dim)
    return ResidentOperand(rows_alone, operand.space, operand.digest)


class Record:
    """One call of a function whose results are computed chunk by chunk.

    Args:
        operation: the call.
        operands: of its slots.
        seeds: what random operations drew.
    """

    __slots__ = ("operands", "operation", "seeds")

    def __init__(
        self, operation: Operation, operands: Sequence[Operand], seeds: Sequence[Seed] = ()
    ) -> None:
        self.operation = operation
        self.operands = tuple(operands)
        self.seeds = tuple(seeds)


def fill(value: Any, values: Sequence[Any]) -> Any:
    """Returns recorded arguments with values in the place of slots, rows as partitioned tensors."""

    def filled(part: Any) -> Any:
        return partitioned(values[part.place]) if type(part) is Slot else part

    return map_nested(value, filled)


class UnchangedCheck:
    """Compares the digests of tensors on the device with those of their records.

    A GPU computes the digests, and a pass that is queued after them, before the host waits for them
    in :func:`require_unchanged`.

    Args:
        operands: of a pass; those that are no tensors on the device are ignored.
    """

    def __init__(self, operands: Sequence[Any]) -> None:
        recorded = {
            id(operand.digest): (operand.digest, operand.tensor._local)
            for operand in operands
            if isinstance(operand, ResidentOperand) and operand.digest is not None
        }
        self._digests = [(digest, PendingDigest(local)) for digest, local in recorded.values()]

    def is_changed(self) -> bool:
        """Returns whether a tensor of this rank was changed in place since its record."""
        return any(recorded.value() != now.value() for recorded, now in self._digests)

    @property
    def has_tensors(self) -> bool:
        """Whether there is anything to compare; the same on all ranks."""
        return bool(self._digests)


def require_unchanged(checks: Sequence[UnchangedCheck], group: Ranks) -> None:
    """Raises RuntimeError on all ranks if a tensor of one was changed in place since its record.

    Collective where there are tensors to compare.
    """
    checks = [check for check in checks if check.has_tensors]
    if not checks:
        return
    refuse_changed(any(check.is_changed() for check in checks), group)


def refuse_changed(is_changed: bool, group: Ranks) -> None:
    """Raises RuntimeError on all ranks if `is_changed` on one. Collective."""
    if group.world_size > 1:
        with group.collective("comparison of what a pass over offloaded rows reads"):
            is_changed = any(group.all_gather(is_changed))
    if is_changed:
        raise RuntimeError(
            "a tensor was changed in place before the rows or gradients of an offloaded graph that "
            "were recorded with it were computed: change a copy, tensor.clone()"
        )
