"""The edges of one relation, with features that are larger than the memory of the device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate import AttentionSum, Csc, Sum, SumAddSelf, SumLinear
from peergraph.aggregate.ops.operands import autocast
from peergraph.aggregate.ops.product_order import multiplies_first
from peergraph.fullgraph.exchange.route import Route
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunks.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.edges.edge_recorder import EdgeRecorder, keep_rows
from peergraph.fullgraph.offload.edges.linear_sum import linear_sum
from peergraph.fullgraph.offload.edges.source_sum import source_sum
from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor, make_shell
from peergraph.fullgraph.offload.tensor.row_space import RowSpaces
from peergraph.fullgraph.structure.edge_call import EdgeCall
from peergraph.fullgraph.structure.edge_changes import with_self_loops, without_self_loops
from peergraph.fullgraph.structure.neighbor_sums import check_order
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.fullgraph.structure.partitioned_structure import (
    PartitionedStructure,
)
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.memory import TableRows

_Rows = TypeVar("_Rows", bound=Tensor)


class OffloadedCsc(PartitionedStructure):
    """The edges of one relation over all ranks, cut in chunks of destinations (HongTu 4.1).

    Features are :class:`OffloadedTensor`; where all features of a verb are on the device, so is the
    result. Verbs are recorded. Aggregated rows are kept for the backward pass; what goes into them,
    such as messages and weights of attention, is computed again (HongTu 4.2).

    Args:
        spaces: the rows of the graph; those of sources have chunks.
        chunked: the edges.
    """

    def __init__(self, spaces: RowSpaces, chunked: ChunkedCsc) -> None:
        super().__init__(chunked.source_layout, chunked.destination_layout, chunked.edge_layout)
        self.chunked = chunked
        """The edges by chunk."""
        self.recorder = EdgeRecorder(spaces, chunked)

    @property
    def device(self) -> torch.device:
        """Device that computes."""
        return self.resident.device

    @property
    def resident(self) -> PartitionedCsc:
        """The same edges, for features on the device."""
        return self.chunked.resident

    def like(self, resident: PartitionedCsc) -> OffloadedCsc:
        """Returns the structure of other edges, also reversed ones, between the same nodes.

        Their destinations are in the chunks that they have in the graph. Collective.
        """
        spaces = self.recorder.spaces
        space = spaces.find(resident.destination_layout)
        assert space is not None
        return OffloadedCsc(spaces, self.chunked.like(resident, space.chunks))

    def move_edge_rows(
        self, e: PartitionedTensor, before: PartitionedStructure, route: Route
    ) -> PartitionedTensor:
        """Moves features of edges: see :meth:`PartitionedStructure.move_edge_rows`.

        Offloaded rows are sums over edges from the rows that were to the rows that are, of which
        each has one. At the first call these edges are made; they take as much memory as the edges.
        """
        if not isinstance(e, OffloadedTensor):
            return self.resident.move_edge_rows(e, before, route)
        assert isinstance(before, OffloadedCsc)
        rows = before._operands.edge("e", e)
        assert rows is not None
        recorder = self.cached("moved edges", lambda: self._recorder_of_moved_rows(before, route))
        return linear_sum(recorder, "sum", rows, None)

    def _recorder_of_moved_rows(self, before: OffloadedCsc, route: Route) -> EdgeRecorder:
        """Returns edges from the rows of edges elsewhere to the rows of these edges."""
        rows, new_rows = before.edge_layout, self.edge_layout
        rows.by_machine = False
        start = rows.offsets[rows.group.rank]
        local_rows = torch.arange(rows.local_count, device=self.device)
        positions = torch.arange(new_rows.local_count, device=self.device)
        edges = PartitionedCsc.from_local_edges(
            rows,
            new_rows,
            RowLayout(new_rows.group, new_rows.counts, new_rows.positions),
            route.move(local_rows + start),
            positions,
        )
        chunked = self.chunked.like(edges, self.chunked.edge_chunks)
        return EdgeRecorder(self.recorder.spaces, chunked, stores_results=True)

    def in_degrees(self) -> PartitionedTensor:
        """Returns the number of edges to each destination, [destinations], on the device."""
        return self.resident.in_degrees()

    def out_degrees(self) -> PartitionedTensor:
        """Returns the number of edges from each source over all ranks, [sources], on the device."""
        return self.resident.out_degrees()

    def count_self_loops(self, dtype: torch.dtype) -> PartitionedTensor:
        """Returns the number of edges from source i to destination i, [destinations]."""
        return self.resident.count_self_loops(dtype)

    def edge_ends(self) -> tuple[PartitionedTensor, PartitionedTensor]:
        """Returns the user's ids of the source and of the destination of each edge, [edges]."""
        return self.resident.edge_ends()

    def keeps(self, x: Tensor | TableRows, e: Tensor | None = None) -> bool:
        """Returns whether results of these features are kept: see the base class.

        In training, results of features that were given with the graph are kept from the first
        time on.
        """
        came_before = super().keeps(x, e)
        # What is kept now is compared at the next call with what the features hold now.
        return came_before or (e is None and _comes_again(x) and super().keeps(x))

    @property
    def _keeps_sums(self) -> bool:
        """Whether sums of constant features are kept: to compare them costs one read, at most."""
        return self.keeps_results

    def keep(self, x: Tensor, key: Hashable, make: Callable[[], _Rows]) -> _Rows:
        """See the base class; offloaded rows are stored when they are first computed."""
        return super().keep(x, key, lambda: _keeping(make()))

    def reduce(self, of: Sum) -> PartitionedTensor:
        """Reduces messages at destinations: see :meth:`spmm`."""
        if not _are_offloaded(of.x, of.e):
            return self.resident.reduce(of)
        _refuse_table(of.x)
        rows, factors = self._operands.source("x", of.x), self._operands.edge("e", of.e)
        constant = rows is not None and self.keeps(rows, factors)
        check_order(of.backward)
        return self._reduce(of.of_rows(rows, factors, "transpose"), constant)

    def spmm_add_self(self, of: SumAddSelf) -> PartitionedTensor:
        """Sums messages and weighted self rows: :func:`peergraph.aggregate.spmm_add_self`."""
        x, self_weight, e, bias, backward, _ = of
        self._operands.check_same_nodes("spmm_add_self")
        if not _are_offloaded(x, e):
            return self.resident.spmm_add_self(of)
        _refuse_table(x)
        check_order(backward)
        checks, message = self._operands, of.message
        rows, factors = checks.source("x", x), checks.edge("e", e)
        check = checks.destination if self_weight.dim() == 2 else checks.parameter
        own = check("self_weight", self_weight)
        assert rows is not None and own is not None
        constant = self.keeps(rows, factors)
        out: Any
        if not constant and self._is_linear_in_sources(message, rows, factors, own):
            out = linear_sum(self.recorder, "sum", rows, factors, own)
        else:
            sums = self._reduce(Sum(message, "sum", rows, factors, "transpose"), constant)
            out = torch.addcmul(sums, rows, own)
        result: PartitionedTensor = out if bias is None else out + bias
        return result

    def spmm_linear(self, of: SumLinear) -> PartitionedTensor:
        """Aggregates and multiplies: see :func:`peergraph.aggregate.spmm_linear`.

        All structures are read in one pass.
        """
        if not _are_offloaded(of.x, of.self_x):
            others = [structure.resident for structure in of.others]
            return self.resident.spmm_linear(of._replace(others=others))
        structures, reduce, bias = self._check_linear(of), of.reduce, of.bias
        _refuse_table(of.x)
        sources = self._operands.source("x", of.x)
        destinations = self._operands.destination("self_x", of.self_x)
        assert sources is not None
        own = sources if destinations is None else destinations
        out: Any = None if of.self_weight is None else F.linear(own, of.self_weight, bias)
        linear = reduce in ("sum", "mean")
        constant = linear and min([structure.keeps(sources) for structure in structures])
        first = linear and not constant and multiplies_first(sources, of.weights)
        for structure, matrix in zip(structures, of.weights, strict=True):
            rows = F.linear(sources, matrix) if first else sources
            part: Any = structure._reduce(Sum("copy_u", reduce, rows, None, "transpose"), constant)
            part = part if first else F.linear(part, matrix)
            if out is None and bias is not None:
                part = part + bias
            out = part if out is None else out + part
        result: PartitionedTensor = out
        return result

    def on_edges(self, call: EdgeCall) -> PartitionedTensor:
        """Runs or records a function on edges: see :meth:`PartitionedStructure.on_edges`.

        With offloaded operands it is called chunk by chunk when rows are needed. Rows of sources
        are computed at once.
        """
        parts = (call.sources, call.destinations, call.edges, call.others)
        if not _are_offloaded(*(x for part in parts for x in part.values())):
            return self.resident.on_edges(call)
        content, needs_grad = self.recorder.record(self._operands.check_call(call))
        if call.result == "source":
            return source_sum(self.recorder, content, needs_grad)
        keep = content.space is self.recorder.destinations
        return self.recorder.tensor(content, needs_grad, keep=keep)

    def spmm_transposed(
        self, message: str, x: Tensor | None = None, e: Tensor | None = None
    ) -> PartitionedTensor:
        """Sums messages at sources: see :meth:`PartitionedStructure.spmm_transposed`."""
        if isinstance(x, OffloadedTensor) and self._is_constant_factor(message, x, e):
            return linear_sum(self.recorder.reversed(), "sum", x, self._reversed_weights(e))
        return super().spmm_transposed(message, x, e)

    def attention(self, of: AttentionSum) -> PartitionedTensor:
        """Sums sources by attention in one pass: see :func:`peergraph.aggregate.attention`.

        ``self_loops`` is None or the number of nodes.
        """
        if of.self_loops is None:
            return super().attention(of)
        if not _are_offloaded(of.x, of.left, of.right):
            return self.resident.attention(of)
        # The sources of a chunk are in an order of their own.
        self._check_loops(of.self_loops)
        structure = with_self_loops(without_self_loops(self), of.self_loops).structure
        return structure.attention(of._replace(self_loops=None))

    def fuses_messages(self) -> bool:
        """Returns whether :meth:`reduce_message` runs as one kernel: on a GPU, with CuPy."""
        return self.resident.fuses_messages()

    def _reduce(self, of: Sum, constant: bool) -> PartitionedTensor:
        """Returns reduced messages; of constant inputs those of the first call."""
        x: Any = of.x
        e, reduce = of.e, of.reduce

        def run() -> PartitionedTensor:
            rows, factors = autocast(x), autocast(e)
            linear = reduce in ("sum", "mean") and of.is_basic()
            if linear and self._is_constant_factor(of.message, rows, factors):
                assert rows is not None
                if reduce == "mean" and not constant and rows.dtype != torch.float16:
                    # The division is a part of the passes that compute rows and their gradients.
                    sums = linear_sum(self.recorder, "sum", rows, factors)  # type: ignore[arg-type]
                    mean: Any = torch.div(sums, self._divisors(rows))
                    return mean  # type: ignore[no-any-return]
                return linear_sum(self.recorder, reduce, rows, factors)  # type: ignore[arg-type]
            # Gradients of a chunk's rows are summed over its transpose, in a fixed order.
            verb = functools.partial(Csc.spmm, **of.settings())
            return self.on_edges(EdgeCall(verb, sources={"x": rows}, edges={"e": factors}))

        if not constant:
            return run()
        constants = self._keep_sum(of, lambda: _keeping(run()))
        assert isinstance(constants, OffloadedTensor)
        # What is kept must not be changed with the result.
        return make_shell(constants._content)

    def _divisors(self, x: Tensor) -> Tensor:
        """Returns the in-degrees by which sums of rows of `x` are divided, [destinations, ...]."""
        degrees = self.cached(
            ("divisors", x.dtype), lambda: self.in_degrees().clamp_(min=1).to(x.dtype)
        )
        return degrees.view([-1, *[1] * (x.dim() - 1)])

    def _is_constant_factor(self, message: str, x: Any, e: Any) -> bool:
        """Returns whether messages are rows of `x` times factors without gradient, or the rows."""
        if x is None:
            return False
        if e is None:
            return message == "copy_u"
        if message != "mul" or e.requires_grad or isinstance(e, OffloadedTensor):
            return False
        if not isinstance(e, PartitionedTensor) or e.dtype != x.dtype or e.dim() > x.dim():
            return False
        return all(size in (1, wide) for wide, size in zip(x.shape[1:], e.shape[1:], strict=False))

    def _is_linear_in_sources(self, message: str, x: Any, e: Any, self_weight: Tensor) -> bool:
        """Returns whether sums with self rows are linear in `x`: all factors have no gradient."""
        if autocast(x) is not x or not isinstance(x, OffloadedTensor):
            return False
        same = self_weight.dtype == x.dtype and not isinstance(self_weight, OffloadedTensor)
        return same and not self_weight.requires_grad and self._is_constant_factor(message, x, e)

    def _reversed_weights(self, e: Tensor | None) -> PartitionedTensor | None:
        if e is None:
            return None
        assert isinstance(e, PartitionedTensor)
        return self.recorder.reversed_weights(e)

    def __repr__(self) -> str:
        return f"OffloadedCsc({self.chunked})"


def _keeping(rows: _Rows) -> _Rows:
    if isinstance(rows, OffloadedTensor):
        keep_rows(rows)
    return rows


def _are_offloaded(*features: Any) -> bool:
    return any(isinstance(rows, OffloadedTensor) for rows in features)


def _comes_again(x: Any) -> bool:
    """Returns whether rows are features of the graph in training, which each epoch reads."""
    if not isinstance(x, OffloadedTensor) or not x._content.is_input:
        return False
    return torch.is_grad_enabled() and x.is_leaf and not x.requires_grad


def _refuse_table(x: Any) -> None:
    if isinstance(x, TableRows):
        raise NotImplementedError(
            "rows of a table as features of an offloaded graph: pass the graph's node rows"
        )
