"""The structure of a graph on one device."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import count_chunks
from peergraph.aggregate.messages.message import Message, fuses_messages
from peergraph.aggregate.ops.attention import attention
from peergraph.aggregate.ops.edge_softmax import edge_softmax
from peergraph.aggregate.ops.sddmm import sddmm
from peergraph.aggregate.ops.spmm import spmm
from peergraph.aggregate.ops.spmm_add_self import spmm_add_self
from peergraph.aggregate.ops.spmm_linear import spmm_linear
from peergraph.aggregate.ops.spmm_transposed import spmm_transposed
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.aggregate.sparse.index_tensors import (
    check_counts,
    check_ids,
    check_range,
    check_size,
    checked_copies,
    group_by,
    indptr_if_sorted,
)
from peergraph.aggregate.structure import Structure
from peergraph.memory.device.default_machine import WORK
from peergraph.memory.region.free_memory import check_count
from peergraph.memory.table.id_list import integers

if TYPE_CHECKING:
    from peergraph.sampling import Block


class Csc(EdgeMatrix, Structure):
    """In-neighbours of each destination, and the order of edge tensors.

    The transpose, over which gradients of sources are summed, is made when it is first needed and
    kept. Implements :class:`peergraph.aggregate.structure.Structure`. Sums, means and values of
    edges are differentiable any number of times, other operations once.

    Args:
        indptr: [destinations + 1] int32 or int64.
        indices: [edges] int32 or int64 sources, on the same device.
        num_sources: bound of `indices`.
        edge_ids: [edges] int32 or int64: edge tensors hold the edge at CSC position p in row
            ``edge_ids[p]``; a permutation. None: in row p.
        duplicate_counts: [num_sources] int32, at least as often as a source occurs: gradients of
            sources that occur once are stored without an atomic (WholeGraph III-C4).
        transient: the structure serves one forward and one backward pass: gradients of sources on
            a GPU then use atomics instead of a transpose. None: not known; the structure counts as
            transient until :meth:`count_use` has been called more than four times.
        num_nonisolated: destinations from this number on have no edges, such as the nodes that the
            last hop added to a mini-batch; None: not known.
        max_chunks: bound of the chunks that a GPU cuts long rows into; None: not known.
        check: copy the tensors, so that later changes do not reach the structure, and verify all
            arguments; synchronises with a GPU. Otherwise the tensors belong to the structure. On
            the CPU, operations raise IndexError for values out of range; on a GPU, wrong arguments
            that are not checked are undefined behaviour.

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
        transient: bool | None = False,
        num_nonisolated: int | None = None,
        max_chunks: int | None = None,
        check: bool = True,
    ) -> None:
        if check:
            indptr, indices, edge_ids, duplicate_counts = checked_copies(
                indptr, indices, num_sources, edge_ids, duplicate_counts, num_nonisolated
            )
            if max_chunks is None and not transient:
                max_chunks = count_chunks(indptr)
        super().__init__(
            indptr.contiguous(),
            indices.contiguous(),
            num_sources,
            edge_ids=None if edge_ids is None else edge_ids.contiguous(),
            max_chunks=max_chunks,
            duplicate_counts=duplicate_counts,
            num_nonisolated=num_nonisolated,
            transient=transient is not False,
        )
        self.is_of_one_batch = transient is True
        self._uses = 0 if transient is None else None
        self._cache: dict[Hashable, Any] = {}

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor,
        num_destinations: int,
        num_sources: int,
        *,
        transient: bool | None = False,
        check: bool = True,
    ) -> Csc:
        """Returns the structure of a list of edges (COO).

        Edges that are not sorted by destination are sorted once; edge tensors stay in the order of
        `edge_index` all the same. Later changes of `edge_index` do not reach the structure.
        Synchronises.

        Args:
            edge_index: [2, edges] int32 or int64: sources, destinations.
            num_destinations, num_sources: bounds of the two rows.
            transient: as for the constructor.
            check: verify the ids, and copy the sources of sorted edges; otherwise they belong to
                the structure.

        Raises:
            TypeError, ValueError: `edge_index` of another dtype or shape.
            IndexError: the first id out of range.
        """
        if not isinstance(edge_index, Tensor):
            raise TypeError(f"edge_index must be a tensor, got {type(edge_index).__name__}")
        if edge_index.dim() != 2 or edge_index.shape[0] != 2:
            raise ValueError(f"edge_index must be [2, edges], got {list(edge_index.shape)}")
        edge_index = edge_index if edge_index.numel() else integers(edge_index)  # of any dtype
        check_ids("edge_index", edge_index[0], edge_index.device)
        check_count("num_destinations", num_destinations, edge_index.device)
        check_size("num_sources", num_sources)
        source, destination = edge_index.unbind()
        last = None
        if check:
            check_range("edge_index[0]", source, num_sources, "sources")
            last = check_range("edge_index[1]", destination, num_destinations, "destinations")
        return cls.from_coo(
            source,
            destination,
            num_destinations,
            num_sources,
            num_nonisolated=None if last is None else last + 1,
            transient=transient,
            copy=check,
        )

    @classmethod
    def from_coo(
        cls,
        source: Tensor,
        destination: Tensor,
        num_destinations: int,
        num_sources: int,
        *,
        num_nonisolated: int | None = None,
        transient: bool | None = False,
        copy: bool = False,
        fixed: bool = False,
    ) -> Csc:
        """As :meth:`from_edge_index` without checks, from two tensors [edges] of one dtype.

        Args:
            copy: copy the sources even of sorted edges.
            fixed: do not synchronise with a GPU, and sort edges there even if they are sorted, so
                that a CUDA graph can repeat it with other edges.
        """
        edge_ids, fixed = None, fixed and destination.device.type != "cpu"
        indptr = None if fixed else indptr_if_sorted(destination, num_destinations)
        if indptr is not None:
            indices = source.clone() if copy else source
        else:
            indptr, indices, edge_ids = group_by(
                destination, source, num_destinations, num_sources, destination.dtype
            )
        return cls(
            indptr,
            indices,
            num_sources,
            edge_ids=edge_ids,
            transient=transient,
            num_nonisolated=num_nonisolated,
            max_chunks=None if fixed else count_chunks(indptr),
            check=False,
        )

    @classmethod
    def from_block(
        cls, block: Block, num_sources: int, *, duplicate_counts: Tensor | None = None
    ) -> Csc:
        """Returns the structure of a hop of a sample; edge tensors are in the order of its edges.

        Destination k of the structure is row ``block.first_target + k`` of the sample's nodes.
        Does not synchronise.

        Args:
            block: of :meth:`peergraph.sampling.Sample.block`.
            num_sources: the sample's nodes of the source type; on a GPU it is not verified that the
                block has no others.
            duplicate_counts: the sample's, of the source type.

        Raises:
            IndexError: on the CPU, the first source that is not below `num_sources`.
            TypeError, ValueError: `duplicate_counts` of another dtype, length or device.
        """
        if block.row.device.type == "cpu" and not torch.compiler.is_compiling():
            check_range("block.row", block.row, num_sources, "sources")
        if duplicate_counts is not None:
            check_counts(duplicate_counts, num_sources, block.row.device)
        return cls(
            block.indptr,
            block.row,
            num_sources,
            duplicate_counts=duplicate_counts,
            transient=True,
            check=False,
        )

    def count_use(self, *, counted: bool = True) -> int:
        """Tells a structure of unknown lifetime that a layer is about to use it.

        More than four uses are worth a transpose. Threads may call this at once: a use that is lost
        delays the transpose.

        Args:
            counted: False for a trial run, which is not counted.

        Returns:
            Uses counted before; 0 if the lifetime is known.
        """
        if self._uses is None:
            return 0
        uses = self._uses
        self.transient = uses < WORK.transposed_uses
        self._uses = uses + int(counted)
        return uses

    # Operations over any matrix of edges are its methods.
    reduce = spmm
    spmm_transposed = spmm_transposed
    spmm_add_self = spmm_add_self
    spmm_linear = spmm_linear
    sddmm = sddmm
    edge_softmax = edge_softmax
    attention = attention
    fuses_messages = fuses_messages

    def reduce_message(self, message: Message, operands: Mapping[str, Tensor | None]) -> Tensor:
        """Reduces messages of the user: see :func:`peergraph.aggregate.message`."""
        return message.reduce_over(self, operands)
