"""The arguments that several kernels take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import DTYPES as DTYPES
from peergraph.memory.device.launching import is_cpu, with_index
from peergraph.memory.device.launching import launch_on as launch_at
from peergraph.memory.device.pending_errors import raise_pending
from peergraph.memory.device.plain_tensor import dense

MESSAGES: dict[str, _C.Message] = dict(_C.Message.__members__)
"""What an edge carries, by name: a function of its source's feature u and its own feature e."""

TARGETS: dict[str, _C.Target] = dict(_C.Target.__members__)
"""Where an operand's row is looked up: u (column), v (row) or e (edge)."""

_DEFAULTS = _C.Schedule()


@dataclass(frozen=True)
class Schedule:
    """How a GPU shares the rows of a matrix out among its warps (MGG 3.2).

    Args:
        chunk: edges of a chunk of a long row.
        long_row: rows of more edges are cut in chunks.
        warps_per_block: 1 or 2.
    """

    chunk: int = _DEFAULTS.chunk
    long_row: int = _DEFAULTS.long_row
    warps_per_block: int = _DEFAULTS.warps_per_block


@dataclass  # A frozen one takes ten times as long to make, and each kernel gets a new one.
class CsrTensors:
    """A sparse matrix without values, by rows, as kernels take it.

    Args:
        indptr: [rows + 1] int32 or int64, contiguous.
        indices: [edges] int32 or int64 columns, contiguous.
        edge_ids: [edges] int32 or int64: edge tensors hold the edge at position p in row
            ``edge_ids[p]``; None: in row p.
        num_columns: bound of `indices`.
        max_chunks: bound of the chunks that a GPU cuts long rows into.
        chunk, long_row, warps_per_block: the fields of a :class:`Schedule`.
    """

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor | None
    num_columns: int
    max_chunks: int
    chunk: int = Schedule.chunk
    long_row: int = Schedule.long_row
    warps_per_block: int = Schedule.warps_per_block

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.indptr.shape[0] - 1

    @property
    def num_edges(self) -> int:
        """The number of edges."""
        return self.indices.shape[0]

    def native(self) -> _C.CsrMatrix:
        """Returns the matrix as the compiled module takes it; the tensors must outlive the call."""
        return _C.CsrMatrix(
            indptr=self.indptr,
            indices=self.indices,
            edge_ids=self.edge_ids,
            num_columns=self.num_columns,
            max_chunks=self.max_chunks,
            schedule=_native_schedule(self.chunk, self.long_row, self.warps_per_block),
        )


def launch_on(device: torch.device) -> _C.Launch:
    """Returns the launch arguments for the current stream; raises the device's pending errors."""
    if not is_cpu(device):
        raise_pending(with_index(device))
    return launch_at(device)


@cache
def _native_schedule(chunk: int, long_row: int, warps_per_block: int) -> _C.Schedule:
    return _C.Schedule(chunk=chunk, long_row=long_row, warps_per_block=warps_per_block)


def supports(device: torch.device) -> bool:
    """Whether the operations run on `device`: the CPU, or a GPU if they were compiled for one."""
    return device.type == "cpu" or (device.type == "cuda" and bool(_C.has_cuda))


def chunk_bound(num_edges: int, schedule: Schedule | None = None) -> int:
    """Returns the bound of `max_chunks` for any degrees."""
    chunk, long_row = _cuts(schedule)
    if num_edges <= long_row:
        return 0
    return num_edges // chunk + num_edges // long_row + 1


def count_chunks(indptr: Tensor, schedule: Schedule | None = None) -> int:
    """Returns the exact `max_chunks`. Synchronises; 0 on the CPU, which does not cut rows."""
    if indptr.device.type == "cpu":
        return 0
    degrees, (chunk, long_row) = indptr.diff(), _cuts(schedule)
    return int(((degrees + (chunk - 1)) // chunk * (degrees > long_row)).sum())


def _cuts(schedule: Schedule | None) -> tuple[int, int]:
    """Returns the edges of a chunk, and of the longest row that is not cut."""
    if schedule is None:
        return Schedule.chunk, Schedule.long_row
    return schedule.chunk, schedule.long_row


def contiguous(tensor: Tensor | None) -> Tensor | None:
    """Returns the tensor with its values side by side, as they are in memory."""
    return None if tensor is None else dense(tensor)


def first_operand(first: Tensor | None, second: Tensor | None) -> Tensor:
    """Returns the first operand, or the second where there is no first."""
    operand = second if first is None else first
    assert operand is not None
    return operand


def operands(
    message: str, x: Tensor | None, e: Tensor | None, columns: int, e_columns: int | None = None
) -> _C.Operands:
    """Returns the operands of messages of `columns` columns.

    `e_columns` are the columns of the edges' operand, which may be None where only its gradient
    counts; default: as `e` has.
    """
    if e_columns is None:
        e_columns = 1 if e is None else e.shape[1]
    return _C.Operands(
        message=MESSAGES[message], x=x, e=e, columns=columns, e_columns=max(1, e_columns)
    )


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which sums of `dtype` are kept."""
    return torch.float64 if dtype == torch.float64 else torch.float32
