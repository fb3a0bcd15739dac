"""The edges of one relation, with features that are larger than the memory of the device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.aggregate.ops.operands import autocast
from peergraph.aggregate.ops.product_order import multiplies_first
from peergraph.aggregate.ops.spmm import REDUCTIONS
from peergraph.aggregate.ops.spmm_linear import check_weights
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload import (  # rules register themselves
    batch_norm,
    selection,
)
from peergraph.fullgraph.offload.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.edge_program import EdgeRecorder, linear_sum
from peergraph.fullgraph.offload.offloaded_tensor import OffloadedTensor, make_shell
from peergraph.fullgraph.offload.virtual_rank import RowSpaces
from peergraph.fullgraph.structure.constant_inputs import ConstantInputs
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.fullgraph.structure.partitioned_structure import (
    NONE,
    Operands,
    PartitionedStructure,
    RowsOf,
)
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.memory import TableRows

__all__ = ["OffloadedCsc", "batch_norm", "selection"]

_Rows = TypeVar("_Rows", bound=Tensor)


class OffloadedCsc(PartitionedStructure):
    """The edges of one relation over all ranks, cut in chunks of destinations (HongTu 4.1).

    Implements :class:`peergraph.aggregate.structure.Structure` with features that are
    :class:`OffloadedTensor`, and also with partitioned tensors on the device: where all features of
    a verb are on the device, so is the result. Verbs are recorded; sums with constant weights keep
    their results for the backward pass, other verbs are computed again (HongTu 4.2).

    Args:
        spaces: the rows of the graph; those of sources have chunks.
        chunked: the edges.
    """

    def __init__(self, spaces: RowSpaces, chunked: ChunkedCsc) -> None:
        super().__init__(chunked.source_layout, chunked.destination_layout, chunked.edge_layout)
        self.chunked = chunked
        """The edges by chunk."""
        self.recorder = EdgeRecorder(spaces, chunked)
        self.keeps_results = True
        """Whether sums of constant features are kept; they take as much memory as the features."""
        self._constants = ConstantInputs()

    @property
    def resident(self) -> PartitionedCsc:
        """The same edges, over features on the device."""
        return self.chunked.resident

    def like(self, resident: PartitionedCsc) -> OffloadedCsc:
        """Returns a structure with other edges between the same nodes. Collective.

        Args:
            resident: these edges on the device, sorted by destination.
        """
        chunked = ChunkedCsc(
            resident,
            self.chunked.chunks,
            deduplicate_ranks=self.chunked.deduplicate_ranks,
            reuse_chunks=self.chunked.reuse_chunks,
        )
        return OffloadedCsc(self.recorder.spaces, chunked)

    @property
    def device(self) -> torch.device:
        """Device that computes."""
        return self.resident.device

    def in_degrees(self) -> PartitionedTensor:
        """Returns the number of edges to each destination, [destinations]."""
        return self.resident.in_degrees()

    def out_degrees(self) -> PartitionedTensor:
        """Returns the number of edges from each source over all ranks, [sources]."""
        return self.resident.out_degrees()

    def count_self_loops(self, dtype: torch.dtype) -> PartitionedTensor:
        """Returns the number of edges from source i to destination i, [destinations]."""
        return self.resident.count_self_loops(dtype)

    def edge_ends(self) -> tuple[PartitionedTensor, PartitionedTensor]:
        """Returns the user's ids of the source and of the destination of each edge, [edges]."""
        return self.resident.edge_ends()

    def keeps(self, x: Tensor | TableRows, e: Tensor | None = None) -> bool:
        """Returns whether results of these features are kept: they came before, unchanged."""
        return self.keeps_results and self._constants.note(*_given(x, e))

    def kept(self, x: Tensor, key: Hashable, make: Callable[[], _Rows]) -> _Rows:
        """Returns what `make` returned at the first call for `x`, of which :meth:`keeps` is true.

        The rows are stored when they are first computed.
        """

        def make_kept() -> _Rows:
            made = make()
            if isinstance(made, OffloadedTensor):
                made._content.keeps = True
            return made

        return self._constants.keep((x,), key, make_kept)

    def spmm(
        self,
        message: str,
        reduce: str,
        x: Tensor | TableRows | None = None,
        e: Tensor | None = None,
    ) -> PartitionedTensor:
        """Reduces messages at destinations: see :func:`peergraph.aggregate.g_spmm`."""
        if not _are_offloaded(x, e):
            return self.resident.spmm(message, reduce, x, e)
        return self._reduce(message, reduce, x, e, x is not None and self.keeps(x, e))

    def spmm_add_self(
        self,
        x: Tensor | TableRows,
        self_weight: Tensor,
        e: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> PartitionedTensor:
        """Sums messages and weighted self rows: :func:`peergraph.aggregate.spmm_add_self`."""
        self._operands.check_same_nodes("spmm_add_self")
        if not _are_offloaded(x, e):
            return self.resident.spmm_add_self(x, self_weight, e, bias)
        sums = self.spmm("copy_u" if e is None else "mul", "sum", x, e)
        assert isinstance(x, Tensor)
        out: Any = torch.addcmul(sums, x, self_weight)
        result: PartitionedTensor = out if bias is None else out + bias
        return result

    def spmm_linear(
        self,
        reduce: str,
        x: Tensor | TableRows,
        weight: Tensor,
        self_weight: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        self_x: Tensor | None = None,
        others: Sequence[tuple[OffloadedCsc, Tensor]] = (),
    ) -> PartitionedTensor:
        """Aggregates and multiplies: see :func:`peergraph.aggregate.spmm_linear`."""
        if not _are_offloaded(x, self_x):
            resident = [(structure.resident, matrix) for structure, matrix in others]
            return self.resident.spmm_linear(
                reduce, x, weight, self_weight, bias, self_x=self_x, others=resident
            )
        if reduce not in REDUCTIONS:
            raise ValueError(f"reduce must be one of {', '.join(REDUCTIONS)}, got {reduce!r}")
        if self_x is None and self_weight is not None:
            self._operands.check_same_nodes("spmm_linear without self_x")
        structures = [self, *(structure for structure, _ in others)]
        weights = [weight, *(other for _, other in others)]
        check_weights(x, weights, self_weight, self_x, bias)
        assert isinstance(x, Tensor)
        own = x if self_x is None else self_x
        out: Any = None if self_weight is None else F.linear(own, self_weight, bias)
        linear = reduce in ("sum", "mean")
        constant = linear and min([structure.keeps(x) for structure in structures])
        first = linear and not constant and multiplies_first(x, weights)
        for structure, matrix in zip(structures, weights, strict=True):
            if first:
                rows = F.linear(x, matrix)
                part: Any = structure._reduce("copy_u", reduce, rows, None, False)
            else:
                sums = structure._reduce("copy_u", reduce, x, None, constant)
                part = F.linear(sums, matrix)
            if out is None and bias is not None:
                part = part + bias
            out = part if out is None else out + part
        result: PartitionedTensor = out
        return result

    def on_edges(
        self,
        function: Callable[..., Tensor],
        *,
        sources: Operands = NONE,
        destinations: Operands = NONE,
        edges: Operands = NONE,
        others: Operands = NONE,
        parameters: Operands = NONE,
        result: RowsOf | RowLayout = "destination",
    ) -> PartitionedTensor:
        """Records a function on the edges: see :meth:`PartitionedStructure.on_edges`."""
        given = (*sources.values(), *destinations.values(), *edges.values(), *others.values())
        if not _are_offloaded(*given):
            return self.resident.on_edges(
                function,
                sources=sources,
                destinations=destinations,
                edges=edges,
                others=others,
                parameters=parameters,
                result=result,
            )
        if others or result not in ("destination", "edge"):
            raise NotImplementedError(
                "functions on edges with selected rows, or with a result for sources, of rows that "
                "are larger than GPU memory: select rows on the device first (x[mask]), or "
                "aggregate over the reversed edges"
            )
        found = self.recorder.record(
            function,
            sources=sources,
            destinations=destinations,
            edges=edges,
            parameters=parameters,
            by_edge=result == "edge",
        )
        return (
            self.recorder.by_edge(*found) if result == "edge" else self.recorder.aggregated(*found)
        )

    def attention(
        self,
        x: Tensor,
        left: Tensor | None = None,
        right: Tensor | None = None,
        *,
        att: Tensor | None = None,
        negative_slope: float = 0.2,
        self_loops: int | None = None,
    ) -> PartitionedTensor:
        """Sums sources by attention in one pass: see :func:`peergraph.aggregate.attention`."""
        if self_loops is not None and _are_offloaded(x, left, right):
            raise NotImplementedError(
                "attention with added self loops over rows that are larger than GPU memory: add "
                "the loops to the edges"
            )
        return super().attention(
            x, left, right, att=att, negative_slope=negative_slope, self_loops=self_loops
        )

    def fuses_messages(self) -> bool:
        """Returns whether :meth:`reduce_message` runs as one kernel: on a GPU, with CuPy."""
        return self.resident.fuses_messages()

    def _reduce(self, message: str, reduce: str, x: Any, e: Any, constant: bool) -> OffloadedTensor:
        """Returns reduced messages; of constant inputs those of the first call."""
        if constant:
            kind = self.device.type
            cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            kept = self._constants.keep(
                _given(x, e),
                (message, reduce, cast),
                lambda: _keeping(self._reduce(message, reduce, x, e, False)),
            )
            return make_shell(kept._content)
        x, e = autocast(x), autocast(e)
        if isinstance(x, TableRows):
            raise NotImplementedError(
                "rows of a table as features that are larger than GPU memory: pass the "
                "graph's node rows"
            )
        if self._is_linear(message, reduce, x, e):
            return linear_sum(self.recorder, reduce, x, e)
        run = functools.partial(Csc.spmm, message=message, reduce=reduce, backward="transpose")
        found = self.recorder.record(run, sources={"x": x}, edges={"e": e})
        return self.recorder.aggregated(*found)

    def _is_linear(self, message: str, reduce: str, x: Any, e: Any) -> bool:
        """Whether the result is linear in `x` with constant factors."""
        if reduce not in ("sum", "mean") or x is None:
            return False
        if e is None:
            return message == "copy_u"
        constant = not e.requires_grad and not isinstance(e, OffloadedTensor)
        narrow = x.dim() >= e.dim() and all(
            size in (1, wide) for wide, size in zip(x.shape[1:], e.shape[1:], strict=False)
        )
        return message == "mul" and constant and narrow and bool(e.dtype == x.dtype)

    def __repr__(self) -> str:
        return f"OffloadedCsc({self.chunked})"


def _keeping(made: OffloadedTensor) -> OffloadedTensor:
    made._content.keeps = True
    return made


def _are_offloaded(*features: Any) -> bool:
    return any(isinstance(rows, OffloadedTensor) for rows in features)


def _given(*inputs: Any) -> tuple[Tensor, ...]:
    return tuple(tensor for tensor in inputs if tensor is not None)
