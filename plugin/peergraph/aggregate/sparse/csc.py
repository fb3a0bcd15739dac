"""The structure that aggregation runs over."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from peergraph.aggregate.sparse.checks import (
    check_backward,
    check_counts,
    check_ids,
    check_offsets,
    check_range,
    check_size,
)
from peergraph.aggregate.sparse.csr import (
    CsrMatrix,
    begins_if_sorted,
    chunk_bound,
    count_chunks,
    group_by,
    transpose_rows,
)
from peergraph.memory.table.id_list import check_distinct, integers

if TYPE_CHECKING:
    from peergraph.sampling import Block

Backward = Literal["auto", "transpose", "atomic"]

# Of all destinations, those with edges, up to which the others are left out where that saves work:
# a few isolated nodes at the end are not worth a structure of its own.
_FEW = 0.75


class Csc:
    """In-neighbours of each destination, and how edge tensors are ordered.

    The transpose, which gradients of sources run over, is made when first needed and kept.

    Args:
        indptr: [destinations + 1] int32 or int64.
        indices: [edges] int32 or int64 sources, on the same device.
        num_sources: bound of `indices`.
        edge_ids: [edges] int32 or int64: edge tensors hold the edge at CSC position p in row
            ``edge_ids[p]``; a permutation. None: in row p.
        duplicate_counts: [num_sources] int32, how often a source occurs at most: gradients of
            sources that occur once are stored without an atomic (WholeGraph III-C4).
        transient: the structure serves one forward and backward: gradients of sources on a GPU
            then use atomics instead of a transpose.
        num_nonisolated: destinations from this number on have no edges, such as the nodes that the
            last hop added to a mini-batch; None: not known.
        check: verify offsets, ids and counts; synchronises with a GPU. Wrong ones that are not
            checked are undefined behaviour.

    Raises:
        TypeError, ValueError: an argument of another dtype, shape or device; bad offsets; the first
            edge id that repeats another; a source that occurs more often than was said.
        IndexError: the first source or edge id out of range.
    """

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        num_sources: int,
        *,
        edge_ids: Tensor | None = None,
        duplicate_counts: Tensor | None = None,
        transient: bool = False,
        num_nonisolated: int | None = None,
        check: bool = True,
    ) -> None:
        indices = check_ids("indices", indices)
        check_ids("indptr", indptr, indices.device)
        if indptr.numel() == 0:
            raise ValueError("indptr must have at least one offset, got none")
        check_size("num_sources", num_sources)
        if edge_ids is not None:
            edge_ids = check_ids("edge_ids", edge_ids, indices.device, indices.numel())
        if duplicate_counts is not None:
            check_ids("duplicate_counts", duplicate_counts, indices.device, num_sources)
            if duplicate_counts.dtype != torch.int32:
                raise TypeError(f"duplicate_counts must be int32, got {duplicate_counts.dtype}")
        count = indptr.numel() - 1
        if num_nonisolated is not None and not 0 <= num_nonisolated <= count:
            raise ValueError(
                f"num_nonisolated must be 0 to {count} destinations, got {num_nonisolated}"
            )
        if check:
            check_offsets(indptr, indices.numel(), num_nonisolated)
            check_range("indices", indices, num_sources, "sources")
            if edge_ids is not None:
                check_distinct("edge_ids", edge_ids, indices.numel(), "edges")
            if duplicate_counts is not None:
                check_counts(duplicate_counts, indices)
        self.num_sources = num_sources
        self.duplicate_counts = duplicate_counts
        self.transient = transient
        exact = check and not transient
        self.rows = CsrMatrix(
            indptr.contiguous(),
            indices.contiguous(),
            None if edge_ids is None else edge_ids.contiguous(),
            num_sources,
            count_chunks(indptr) if exact else chunk_bound(indices.numel()),
        )
        self._num_nonisolated = count if num_nonisolated is None else num_nonisolated
        self._trimmed: Csc | None = None
        self._transpose: CsrMatrix | None = None
        self._positions: Tensor | None = None

    @classmethod
    def from_edge_index(
        cls, edge_index: Tensor, num_destinations: int, num_sources: int, *, check: bool = True
    ) -> Csc:
        """From sources and destinations, one column for each edge.

        Edges that are grouped by destination already keep their place and are not copied. Others
        are sorted once; edge tensors stay in the order of `edge_index` all the same. Synchronises.

        Args:
            edge_index: [2, edges] int32 or int64: sources, destinations.
            num_destinations, num_sources: bounds of the two rows.
            check: verify the ids.

        Raises:
            TypeError, ValueError: `edge_index` of another dtype or shape.
            IndexError: the first id out of range.
        """
        if edge_index.dim() != 2 or edge_index.shape[0] != 2:
            raise ValueError(f"edge_index must be [2, edges], got {list(edge_index.shape)}")
        edge_index = integers(edge_index)
        check_ids("edge_index", edge_index[0], edge_index.device)
        check_size("num_destinations", num_destinations)
        check_size("num_sources", num_sources)
        source, destination = edge_index.unbind()
        if not check:
            return cls.from_ends(source, destination, num_destinations, num_sources)
        check_range("edge_index[0]", source, num_sources, "sources")
        last = check_range("edge_index[1]", destination, num_destinations, "destinations")
        csc = cls.from_ends(source, destination, num_destinations, num_sources)
        csc._num_nonisolated = last + 1
        return csc

    @classmethod
    def from_ends(
        cls, source: Tensor, destination: Tensor, num_destinations: int, num_sources: int
    ) -> Csc:
        """As :meth:`from_edge_index` without checks, from two tensors [edges] of one dtype."""
        sorted_begins = begins_if_sorted(destination, num_destinations)
        if sorted_begins is not None:
            return cls._checked(sorted_begins, source, num_sources)
        dtype = destination.dtype
        indptr, indices, order = group_by(destination, source, num_destinations, num_sources, dtype)
        return cls._checked(indptr, indices, num_sources, order)

    @classmethod
    def _checked(
        cls, indptr: Tensor, indices: Tensor, num_sources: int, edge_ids: Tensor | None = None
    ) -> Csc:
        csc = cls(indptr, indices, num_sources, edge_ids=edge_ids, check=False)
        csc.rows = replace(csc.rows, max_chunks=count_chunks(indptr))
        return csc

    @classmethod
    def from_block(
        cls, block: Block, num_sources: int, *, duplicate_counts: Tensor | None = None
    ) -> Csc:
        """From a hop of a sample: edge tensors in the order of the block's edges.

        Destination k of the structure is row ``block.first_target + k`` of the sample's nodes.
        Does not synchronise.

        Args:
            block: of :meth:`peergraph.sampling.Sample.block`.
            num_sources: the sample's nodes of the source type; on a GPU it is not verified that the
                block has no others.
            duplicate_counts: the sample's, of the source type.

        Raises:
            IndexError: on the CPU, the first source that is not below `num_sources`.
        """
        if block.row.device.type == "cpu" and not torch.compiler.is_compiling():
            check_range("block.row", block.row, num_sources, "sources")
        return cls(
            block.indptr,
            block.row,
            num_sources,
            duplicate_counts=duplicate_counts,
            transient=True,
            check=False,
        )

    @property
    def num_destinations(self) -> int:
        """Rows of what is aggregated."""
        return self.rows.num_rows

    @property
    def num_edges(self) -> int:
        """Rows of edge tensors."""
        return self.rows.num_edges

    @property
    def device(self) -> torch.device:
        """Where the structure and all features lie."""
        return self.rows.indices.device

    def degrees(self) -> Tensor:
        """[destinations] edges of each."""
        return self.rows.indptr.diff()

    def trim_isolated_tail(self) -> Csc:
        """The same edges without the last destinations, if many of these have none.

        What follows a sum need then not look at their rows: sums of no edges are zeros.
        """
        if self._num_nonisolated > _FEW * self.num_destinations:
            return self
        if self._trimmed is None:
            rows = self.rows
            self._trimmed = Csc(
                rows.indptr[: self._num_nonisolated + 1],
                rows.indices,
                self.num_sources,
                edge_ids=rows.edge_ids,
                duplicate_counts=self.duplicate_counts,
                check=False,
            )
            self._trimmed.rows = replace(self._trimmed.rows, max_chunks=rows.max_chunks)
        self._trimmed.transient = self.transient
        return self._trimmed

    def transpose(self) -> CsrMatrix:
        """The edges by source. Made at the first call: a stable sort; synchronises with a GPU."""
        if self._transpose is None:
            compiling = torch.compiler.is_compiling()
            # What is kept must be no tensor of a trace.
            given = (self.rows.indptr, self.rows.indices)
            keeps = not compiling and all(type(tensor) is Tensor for tensor in given)
            with _disable_current_modes() if keeps else nullcontext():
                self._transpose, self._positions = self._turned(compiling)
        return self._transpose

    def _turned(self, compiling: bool) -> tuple[CsrMatrix, Tensor]:
        rows = self.rows
        indptr, indices, positions = transpose_rows(rows.indptr, rows.indices, rows.num_columns)
        edge_ids = positions if rows.edge_ids is None else rows.edge_ids[positions]
        chunks = chunk_bound(rows.num_edges) if compiling else count_chunks(indptr)
        return CsrMatrix(indptr, indices, edge_ids, rows.num_rows, chunks), positions

    def transpose_tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """indptr and indices of the transpose, and the positions in `rows` of its edges."""
        rows = self.transpose()
        assert self._positions is not None
        return rows.indptr, rows.indices, self._positions

    def gradient_matrix(self, backward: str, deterministic: bool) -> CsrMatrix | None:
        """What gradients of sources run over: the transpose, or None for atomics.

        Raises:
            ValueError: `backward` is unknown, or "atomic" though `deterministic`.
        """
        check_backward(backward, deterministic)
        atomics = self.transient and self._transpose is None and self.device.type != "cpu"
        if backward == "atomic" or (backward == "auto" and atomics and not deterministic):
            return None
        return self.transpose()

    def __repr__(self) -> str:
        return (
            f"Csc({self.num_sources} sources, {self.num_destinations} destinations, "
            f"{self.num_edges} edges, {self.device})"
        )
