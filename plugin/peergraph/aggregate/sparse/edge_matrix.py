"""The edges of a graph by destination, their transpose, and sums over them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from peergraph.aggregate.kernels.arguments import (
    CsrTensors,
    Schedule,
    chunk_bound,
    count_chunks,
)
from peergraph.aggregate.kernels.spmm import add_spmm, spmm, spmm_into
from peergraph.aggregate.kernels.torch_operator import is_traced
from peergraph.aggregate.sparse.column_blocks import add_in_blocks, column_block_count
from peergraph.aggregate.sparse.index_tensors import group_by_column, row_of_edges, transpose_rows
from peergraph.memory import TableRows
from peergraph.memory.device.default_machine import WORK

Backward = Literal["auto", "transpose", "atomic"]

# The isolated tail is trimmed if at most this share of the rows is left. A few isolated rows at the
# end are not worth a matrix of their own.
_TRIMMED_SHARE = 0.75
_MOST_GROUPED = 1 << 31
# Sums of other dtypes would be rounded after each block of columns.
_WIDE = (torch.float32, torch.float64)


def check_backward(backward: str, deterministic: bool) -> None:
    """Raises ValueError unless `backward` is known and goes with `deterministic`."""
    if backward not in ("auto", "transpose", "atomic"):
        raise ValueError(f"backward must be 'auto', 'transpose' or 'atomic', got {backward!r}")
    if backward == "atomic" and deterministic:
        raise ValueError("backward='atomic' adds in no fixed order, got deterministic=True")


def check_first_rows(matrix: EdgeMatrix, x: Tensor | TableRows) -> None:
    """Raises ValueError unless the destinations of `matrix` can be the first rows of `x`."""
    if len(x.shape) != 2 or x.shape[0] != matrix.num_sources:
        raise ValueError(f"x must be [{matrix.num_sources}, columns], got {list(x.shape)}")
    if matrix.num_sources < matrix.num_destinations:
        raise ValueError(f"destinations must be the first sources, got {matrix}")


def tensors_of(matrices: Sequence[EdgeMatrix]) -> list[Tensor]:
    """Returns the tensors of matrices and of the transposes that have been made."""
    every = [*matrices, *(each.transpose() for each in matrices if each.has_transpose)]
    lists = [tensor for each in every for tensor in (each.indptr, each.indices)]
    return [*lists, *(each.edge_ids for each in every if each.edge_ids is not None)]


class EdgeMatrix:
    """Edges by destination: a sparse matrix without values, whose rows are destinations.

    :class:`peergraph.aggregate.Csc` is one with operations. The transpose, over which gradients of
    sources are summed, is made when it is first needed and kept.

    Args:
        indptr: [destinations + 1] int32 or int64, contiguous.
        indices: [edges] int32 or int64 sources, contiguous.
        num_sources: bound of `indices`.
        edge_ids: [edges] int32 or int64: edge tensors hold the edge at position p in row
            ``edge_ids[p]``; None: in row p.
        max_chunks: bound of the chunks that a GPU cuts long rows into; None: the bound for any
            degrees.
        duplicate_counts: [sources] int32, at least as often as a source occurs, or None.
        num_nonisolated: destinations from this number on have no edges; None: not known.
        transient: the matrix serves one forward and one backward pass.
        schedule: how a GPU shares the rows out among its warps; None: as was measured to be best.
    """

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        num_sources: int,
        *,
        edge_ids: Tensor | None = None,
        max_chunks: int | None = None,
        duplicate_counts: Tensor | None = None,
        num_nonisolated: int | None = None,
        transient: bool = False,
        schedule: Schedule | None = None,
    ) -> None:
        self.indptr = indptr
        """[destinations + 1] offsets into `indices`."""
        self.indices = indices
        """[edges] sources, grouped by destination."""
        self.edge_ids = edge_ids
        """[edges] row in edge tensors of each position's edge, or None if it is the position."""
        self._num_sources = num_sources
        self.schedule = schedule
        self.max_chunks = (
            chunk_bound(indices.shape[0], schedule) if max_chunks is None else max_chunks
        )
        self.duplicate_counts = duplicate_counts
        """[sources] int32, at least as often as a source occurs; None: not known."""
        self.num_nonisolated = self.num_destinations if num_nonisolated is None else num_nonisolated
        self.transient = transient
        """Whether gradients of sources on a GPU use atomics instead of a transpose."""
        self.is_of_one_batch = False
        """Whether it is known that the matrix serves one forward and one backward pass."""
        self.deterministic: bool | None = None
        """Whether gradients of attention are added in a fixed order; None: as torch is set."""
        self.has_edge_operands = True
        """Whether kernels may get values of edges; else the transpose has no edge ids."""
        self.blocks_columns = False
        """Whether sums may run in blocks of columns, which are kept and take as much memory as the
        edges: for matrices that serve many passes."""
        self._column_blocks: dict[tuple[int, bool], list[CsrTensors]] = {}
        self._trimmed: EdgeMatrix | None = None
        self._transpose: EdgeMatrix | None = None
        self._grouped: EdgeMatrix | None = None
        self._positions: Tensor | None = None

    @property
    def num_sources(self) -> int:
        """Returns the number of sources. Features of sources have one row for each."""
        return self._num_sources

    @property
    def num_destinations(self) -> int:
        """Returns the number of destinations: the rows of their features and of results."""
        return self.indptr.shape[0] - 1

    @property
    def num_edges(self) -> int:
        """Returns the number of edges. Features of edges have one row for each."""
        return self.indices.shape[0]

    @property
    def has_transpose(self) -> bool:
        """Whether the transpose has been made."""
        return self._transpose is not None

    @property
    def device(self) -> torch.device:
        """Device of the structure and of all features."""
        return self.indices.device

    @property
    def tensors(self) -> CsrTensors:
        """The matrix as kernels take it."""
        matrix = self.indptr, self.indices, self.edge_ids, self.num_sources, self.max_chunks
        if self.schedule is None:
            return CsrTensors(*matrix)
        schedule = self.schedule
        return CsrTensors(*matrix, schedule.chunk, schedule.long_row, schedule.warps_per_block)

    def in_degrees(self) -> Tensor:
        """Returns the number of edges to each destination, [destinations]."""
        return self.indptr.diff()

    def divisors(self, dtype: torch.dtype) -> Tensor:
        """Returns the divisors of means, [destinations] of `dtype`."""
        if is_traced():
            return self.in_degrees().clamp(min=1).to(dtype)
        degrees = torch.empty(self.num_destinations, dtype=dtype, device=self.device)
        # Differences are written in `dtype`, which saves a launch.
        torch.sub(self.indptr[1:], self.indptr[:-1], out=degrees)
        return degrees.clamp_(min=1)

    def out_degrees(self) -> Tensor:
        """Returns the number of edges from each source, [sources]. Does not synchronise."""
        if self._transpose is not None:
            return self._transpose.in_degrees()
        counts = torch.zeros(self.num_sources, dtype=self.indptr.dtype, device=self.device)
        return counts.index_add_(0, self.indices, counts.new_ones(()).expand(self.num_edges))

    def count_self_loops(self, dtype: torch.dtype) -> Tensor:
        """Returns the number of edges from source i to destination i, [destinations] of `dtype`.

        Does not synchronise.
        """
        rows = row_of_edges(self.indptr, self.num_edges, self.indices.dtype)
        loops_before = self.indptr.new_zeros(self.num_edges + 1)
        torch.cumsum(self.indices == rows, 0, dtype=self.indptr.dtype, out=loops_before[1:])
        return loops_before[self.indptr].diff().to(dtype)

    def trim_isolated_tail(self) -> EdgeMatrix:
        """Returns the matrix without the last rows, if many of these have no edges.

        Steps that follow a sum then skip these rows, whose sums are zeros. A matrix of which few
        rows would go is returned itself.
        """
        if self.num_nonisolated > _TRIMMED_SHARE * self.num_destinations:
            return self
        if self._trimmed is None:
            self._trimmed = EdgeMatrix(
                self.indptr[: self.num_nonisolated + 1],
                self.indices,
                self.num_sources,
                edge_ids=self.edge_ids,
                max_chunks=self.max_chunks,
                duplicate_counts=self.duplicate_counts,
                schedule=self.schedule,
            )
        self._trimmed.transient = self.transient
        self._trimmed.is_of_one_batch = self.is_of_one_batch
        self._trimmed.blocks_columns = self.blocks_columns
        return self._trimmed

    def transpose(self) -> EdgeMatrix:
        """Returns the edges by column. The first call sorts (stable) and synchronises a GPU."""
        if self._transpose is None:
            with self._outside_of_traces():
                self._make_transpose()
            assert self._transpose is not None
            self._transpose.blocks_columns = self.blocks_columns
        return self._transpose

    def _make_transpose(self) -> None:
        transpose = transpose_rows(self.indptr, self.indices, self.num_sources)
        compiling = torch.compiler.is_compiling()
        max_chunks = None if compiling else count_chunks(transpose[0], self.schedule)
        self.adopt_transpose(*transpose, max_chunks)

    def adopt_transpose(
        self, indptr: Tensor, indices: Tensor, positions: Tensor, max_chunks: int | None
    ) -> None:
        """Takes the edges by column, in the order of rows.

        Args:
            indptr, indices, max_chunks: as of a matrix.
            positions: [edges] the position of each edge here.
        """
        if self.edge_ids is not None:
            edge_ids: Tensor | None = self.edge_ids[positions]
        else:
            edge_ids = self._positions = positions if self.has_edge_operands else None
        self._transpose = EdgeMatrix(
            indptr,
            indices,
            self.num_destinations,
            edge_ids=edge_ids,
            max_chunks=max_chunks,
            schedule=self.schedule,
        )

    def transpose_tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns indptr and indices of the transpose, and the CSC position of each of its edges.

        The first call sorts the edges and synchronises with a GPU.
        """
        transpose = self.transpose()
        if self._positions is None:
            with self._outside_of_traces():
                sorted_edges = transpose_rows(self.indptr, self.indices, self.num_sources)
                self._positions = sorted_edges[2]
        return transpose.indptr, transpose.indices, self._positions

    def _outside_of_traces(self) -> AbstractContextManager[object]:
        """A matrix that is kept must hold no tensors of a trace."""
        is_kept = type(self.indptr) is Tensor and type(self.indices) is Tensor
        if torch.compiler.is_compiling() or not is_kept:
            return nullcontext()
        context: AbstractContextManager[object] = _disable_current_modes()
        return context

    def grouped_by_column(self) -> EdgeMatrix:
        """Returns the edges by column, in no fixed order on a GPU. Does not sort or synchronise."""
        if self._grouped is None:
            indptr, rows, edge_ids = group_by_column(self.tensors)
            self._grouped = EdgeMatrix(
                indptr, rows, self.num_destinations, edge_ids=edge_ids, schedule=self.schedule
            )
        return self._grouped

    def gradient_matrix(
        self, backward: str, deterministic: bool, columns: int = 0
    ) -> EdgeMatrix | None:
        """Returns the transpose, if gradients of columns are summed over it; None for atomics.

        Args:
            backward: "auto", "transpose" or "atomic".
            deterministic: gradients are summed in a fixed order.
            columns: of the gradients of which many may be summed over edges in no fixed order.

        Raises:
            ValueError: `backward` is unknown, or "atomic" though `deterministic`.
        """
        check_backward(backward, deterministic)
        atomics = self.transient and self._transpose is None and self.device.type != "cpu"
        if backward == "atomic":
            return None
        if backward == "transpose" or deterministic or not atomics:
            return self.transpose()
        return self.grouped_by_column() if self._pays_to_group(columns) else None

    def _pays_to_group(self, columns: int) -> bool:
        """Returns whether grouping the edges once costs less than adding gradients by atomics."""
        fits = max(self.num_edges, self.num_destinations) < _MOST_GROUPED and not is_traced()
        return fits and self.is_of_one_batch and self.num_edges * columns >= WORK.grouped_values

    def edge_ends(self) -> tuple[Tensor, Tensor]:
        """Returns the source and the destination of each edge, [edges] int64, by edge id."""
        rows = row_of_edges(self.indptr, self.num_edges)
        columns = self.indices.long()
        if self.edge_ids is not None:
            by_edge = self.edge_ids.long()
            columns = torch.empty_like(columns).index_copy_(0, by_edge, columns)
            rows = torch.empty_like(rows).index_copy_(0, by_edge, rows)
        return columns, rows

    # Sums of operands that are contiguous matrices: nothing is checked, there is no autograd.

    def sum_messages(
        self, x: Tensor | None, e: Tensor | None, message: str, mean: bool = False
    ) -> Tensor:
        """Returns the sum or mean of the messages of each row, [rows, columns of the operands]."""
        blocks = self._blocks_for(x, e, message)
        if x is None or blocks is None:
            return spmm(x, e, self.tensors, message, mean)
        out = add_in_blocks(None, blocks, x, e, message)
        if mean:
            out.div_(self.in_degrees().clamp(min=1).to(out.dtype).unsqueeze(1))
        return out

    def sum_rows_as(self, dtype: torch.dtype, x: Tensor, mean: bool) -> Tensor:
        """Returns the sum or mean of the rows of `x` in each row, in `dtype`; no operator of torch.

        Args:
            dtype: that of `x`, or float16 or bfloat16 for float32: sums are rounded once.
            x, mean: as for :meth:`sum_messages`.
        """
        if dtype == x.dtype:
            return self.sum_messages(x, None, "copy_u", mean)
        if self._blocks_for(x, None, "copy_u") is not None:
            return self.sum_messages(x, None, "copy_u", mean).to(dtype)
        out = x.new_empty(self.num_destinations, x.shape[1], dtype=dtype)
        spmm_into(out, x, self.tensors, mean)
        return out

    def add_messages(self, out: Tensor, x: Tensor | None, e: Tensor | None, message: str) -> None:
        """Adds the sum of the messages of each row to `out`; no operator of torch."""
        blocks = self._blocks_for(x, e, message)
        if x is None or blocks is None:
            add_spmm(out, x, e, self.tensors, message)
        else:
            add_in_blocks(out, blocks, x, e, message)

    def _blocks_for(
        self, x: Tensor | None, e: Tensor | None, message: str
    ) -> list[CsrTensors] | None:
        """Returns the blocks of columns in which `x` is summed, or None for all at once."""
        if not self.blocks_columns or x is None or message not in ("copy_u", "mul"):
            return None
        if is_traced() or x.dtype not in _WIDE:
            return None
        count = column_block_count(self.tensors, x)
        if count == 1:
            return None
        key = count, e is not None
        if key not in self._column_blocks:
            cuts = [self.num_sources * block // count for block in range(count + 1)]
            self._column_blocks[key] = [
                self.take_columns(first, last, edge_ids=e is not None).tensors
                for first, last in pairwise(cuts)
            ]
        return self._column_blocks[key]

    def take_columns(self, first: int, last: int, *, edge_ids: bool = True) -> EdgeMatrix:
        """Returns the edges from the columns `first` to `last` - 1, renumbered from 0.

        Args:
            first, last: of the columns.
            edge_ids: whether edge tensors are those of this matrix; else there are to be none.
        """
        indices = self.indices
        chosen = (indices >= first) & (indices < last)
        before = torch.zeros(len(indices) + 1, dtype=self.indptr.dtype, device=self.device)
        torch.cumsum(chosen, 0, out=before[1:])
        positions = chosen.nonzero().squeeze(1)
        ids = None
        if edge_ids:
            ids = positions if self.edge_ids is None else self.edge_ids[positions]
            ids = ids.to(indices.dtype)
        return EdgeMatrix(
            before[self.indptr.long()],
            indices[positions] - first,
            last - first,
            edge_ids=ids,
            max_chunks=self.max_chunks,
            schedule=self.schedule,
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.num_sources} sources, "
            f"{self.num_destinations} destinations, {self.num_edges} edges, {self.device})"
        )
