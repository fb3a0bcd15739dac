"""The edges of one relation, with features that are larger than the memory of the device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate import Message
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
from peergraph.fullgraph.structure.operands import Operands
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.memory import TableRows

__all__ = ["OffloadedCsc", "batch_norm", "selection"]

_Result = TypeVar("_Result")
_Rows = TypeVar("_Rows", bound=Tensor)


class OffloadedCsc:
    """The edges of one relation over all ranks, cut in chunks of destinations (HongTu 4.1).

    Implements :class:`peergraph.aggregate.structure.Structure` with features that are
    :class:`OffloadedTensor`, and also with partitioned tensors on the device: where all features of
    a verb are on the device, so is the result. Verbs are recorded; sums with constant weights keep
    their results for the backward pass, other verbs are computed again (HongTu 4.2).

    Args:
        spaces: the rows of the graph; those of sources have chunks.
        chunked: the edges.
    """

    transient = False
    """Offloaded structures serve many passes."""
    orders_products = True
    """:meth:`spmm_linear` multiplies first where that is narrower (MG-GCN 4.4)."""

    def __init__(self, spaces: RowSpaces, chunked: ChunkedCsc) -> None:
        self.resident: PartitionedCsc = chunked.resident
        """The same edges, for features on the device."""
        self.chunked = chunked
        """The edges by chunk."""
        self.recorder = EdgeRecorder(spaces, chunked)
        self.keeps_results = True
        """Whether sums of constant features are kept; they take as much memory as the features."""
        self._constants = ConstantInputs()
        self._operands = Operands(self.source_layout, self.destination_layout, self.edge_layout)

    @property
    def source_layout(self) -> RowLayout:
        """Rows of the features of sources."""
        return self.resident.source_layout

    @property
    def destination_layout(self) -> RowLayout:
        """Rows of the features of destinations."""
        return self.resident.destination_layout

    @property
    def edge_layout(self) -> RowLayout:
        """Rows of the features of edges."""
        return self.resident.edge_layout

    @property
    def num_sources(self) -> int:
        """Rows of features of sources, of all ranks."""
        return self.resident.num_sources

    @property
    def num_destinations(self) -> int:
        """Rows of features of destinations, of all ranks."""
        return self.resident.num_destinations

    @property
    def num_edges(self) -> int:
        """Rows of features of edges, of all ranks."""
        return self.resident.num_edges

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

    def cached(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """Returns what `make` returned at the first call with this key."""
        return self.resident.cached(key, make)

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

    def spmm_transposed(
        self, message: str, x: Tensor | None = None, e: Tensor | None = None
    ) -> PartitionedTensor:
        """Sums messages at sources: see :meth:`PartitionedCsc.spmm_transposed`."""
        if not _are_offloaded(x, e):
            return self.resident.spmm_transposed(message, x, e)
        raise NotImplementedError(
            "spmm_transposed of rows that are larger than GPU memory: aggregate over the reversed "
            "edges"
        )

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
        out: Any = torch.addcmul(sums, x, self_weight)  # type: ignore[call-overload]
        return out if bias is None else out + bias

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
            if out is None:
                out = part if bias is None else part + bias
            else:
                out = out + part
        return out  # type: ignore[no-any-return]

    def sddmm(
        self,
        op: str,
        lhs: Tensor,
        rhs: Tensor | None = None,
        lhs_target: str = "u",
        rhs_target: str = "v",
    ) -> PartitionedTensor:
        """Computes a value for each edge: see :func:`peergraph.aggregate.g_sddmm`."""
        if not _are_offloaded(lhs, rhs):
            return self.resident.sddmm(op, lhs, rhs, lhs_target, rhs_target)
        found = self.recorder.record(
            "sddmm",
            [
                ("-", op),
                (lhs_target, autocast(lhs)),
                (rhs_target, autocast(rhs)),
                ("-", lhs_target),
                ("-", rhs_target),
            ],
            by_edge=True,
        )
        return self.recorder.by_edge(*found)

    def edge_softmax(self, scores: Tensor) -> PartitionedTensor:
        """Normalises scores of edges: see :func:`peergraph.aggregate.edge_softmax`."""
        if not _are_offloaded(scores):
            return self.resident.edge_softmax(scores)
        found = self.recorder.record("edge_softmax", [("e", scores)], by_edge=True)
        return self.recorder.by_edge(*found)

    def supports_attention(self, x: Tensor) -> bool:
        """Returns whether :meth:`attention` takes `x` [sources, heads, depth]."""
        return self.resident.supports_attention(x)

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
        if not _are_offloaded(x, left, right):
            return self.resident.attention(
                x, left, right, att=att, negative_slope=negative_slope, self_loops=self_loops
            )
        if self_loops is not None:
            raise NotImplementedError(
                "attention with added self loops over rows that are larger than GPU memory: add "
                "the loops to the edges"
            )
        found = self.recorder.record(
            "attention",
            [("u", x), ("u", left), ("v", right)],
            {"att": ("w", att)},
            negative_slope=negative_slope,
            deterministic=True,
        )
        return self.recorder.aggregated(*found)

    def fuses_messages(self) -> bool:
        """Returns whether :meth:`reduce_message` runs as one kernel: on a GPU, with CuPy."""
        return self.resident.fuses_messages()

    def reduce_message(
        self,
        message: Message,
        *,
        u: Tensor | None = None,
        v: Tensor | None = None,
        e: Tensor | None = None,
        w: Tensor | None = None,
    ) -> PartitionedTensor:
        """Reduces messages of the user: see :func:`peergraph.aggregate.message`."""
        if not _are_offloaded(u, v, e, w):
            return self.resident.reduce_message(message, u=u, v=v, e=e, w=w)
        found = self.recorder.record(
            "reduce_message",
            [("-", message)],
            {"u": ("u", autocast(u)), "v": ("v", v), "e": ("e", e), "w": ("e", w)},
        )
        return self.recorder.aggregated(*found)

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
        found = self.recorder.record(
            "spmm",
            [("-", message), ("-", reduce), ("u", x), ("e", e)],
            backward="transpose",
        )
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
