"""The edges of one relation, partitioned by destination."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from peergraph.aggregate import Csc, Message, attention_fits
from peergraph.aggregate.ops.operands import autocast
from peergraph.aggregate.ops.spmm_linear import spmm_linear
from peergraph.aggregate.sparse.checks import check_range
from peergraph.aggregate.sparse.csr import CsrMatrix
from peergraph.fullgraph.exchange.halo import HaloPlan, add_to_owners
from peergraph.fullgraph.exchange.local_operands import local_operands
from peergraph.fullgraph.exchange.transport import split_rows
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.structure.operands import local_rows, parameter
from peergraph.fullgraph.tensor.conversions import from_local
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.memory import TableRows

_Result = TypeVar("_Result")


class PartitionedCsc:
    """The edges of one relation over all ranks; each rank holds the edges to its destinations.

    Implements :class:`peergraph.aggregate.structure.Structure` with features that are
    :class:`PartitionedTensor`: those of sources have the rows of `source_layout`, those of
    destinations of `destination_layout`, those of edges of `edge_layout`. Parameters are plain
    tensors, equal on all ranks. Rows of sources that lie on other ranks are exchanged (MG-GCN 4.1);
    each verb then runs on the edges of this rank, and gradients of the exchanged rows are added
    at their owners. All verbs are collective. Sums are in a fixed order, so that two runs are equal
    bit for bit.

    Made by :meth:`from_local_edges`.
    """

    transient = False
    """Partitioned structures serve many passes."""

    def __init__(
        self,
        source_layout: RowLayout,
        destination_layout: RowLayout,
        edge_layout: RowLayout,
        plan: HaloPlan,
        local: Csc,
    ) -> None:
        self.source_layout = source_layout
        """Rows of the features of sources."""
        self.destination_layout = destination_layout
        """Rows of the features of destinations."""
        self.edge_layout = edge_layout
        """Rows of the features of edges."""
        self.plan = plan
        """Which rows of sources are exchanged."""
        self.local = local
        """The edges of this rank, from extended rows of sources to local rows of destinations."""
        self._cache: dict[Hashable, Any] = {}
        self._out_degrees: Tensor | None = None

    @classmethod
    def from_local_edges(
        cls,
        source_layout: RowLayout,
        destination_layout: RowLayout,
        edge_layout: RowLayout,
        source_internal_rows: Tensor,
        destination_local_rows: Tensor,
    ) -> PartitionedCsc:
        """Returns the structure of edges that each rank gives for its destinations. Collective.

        Args:
            source_layout, destination_layout: the rows of nodes; one object where sources and
                destinations are the same nodes.
            edge_layout: the rows of edges; this rank's row k is edge k of the next two.
            source_internal_rows: [edges of this rank] int32 or int64: the internal row number of
                each edge's source.
            destination_local_rows: [edges of this rank] int32 or int64: the local row of each
                edge's destination. Sorted edges take less memory.

        Raises:
            ValueError: a number of edges that is not the edge layout's.
            IndexError: a row out of range.
        """
        count, rows = edge_layout.local_count, destination_layout.local_count
        device = source_layout.group.device
        for name, ids in (
            ("source_internal_rows", source_internal_rows),
            ("destination_local_rows", destination_local_rows),
        ):
            if tuple(ids.shape) != (count,):
                raise ValueError(f"{name} must be [{count}] as the edge layout, "
                                 f"got {list(ids.shape)}")  # fmt: skip
        if count:
            check_range("destination_local_rows", destination_local_rows, rows, "local rows")
        plan, sources = HaloPlan.make(source_layout, source_internal_rows)
        narrow = max(plan.num_extended, rows, count) < 2**31 - 1
        dtype = torch.int32 if narrow else torch.int64
        local = Csc.from_coo(
            sources.to(dtype),
            destination_local_rows.to(device, dtype),
            rows,
            plan.num_extended,
        )
        return cls(source_layout, destination_layout, edge_layout, plan, local)

    @property
    def num_sources(self) -> int:
        """Rows of features of sources, of all ranks."""
        return self.source_layout.size

    @property
    def num_destinations(self) -> int:
        """Rows of features of destinations, of all ranks."""
        return self.destination_layout.size

    @property
    def num_edges(self) -> int:
        """Rows of features of edges, of all ranks."""
        return self.edge_layout.size

    @property
    def device(self) -> torch.device:
        """Device of this rank's rows."""
        return self.local.device

    def in_degrees(self) -> PartitionedTensor:
        """Returns the number of edges to each destination, [destinations]."""
        return self._of_destinations(self.local.in_degrees())

    def out_degrees(self) -> PartitionedTensor:
        """Returns the number of edges from each source over all ranks, [sources].

        Collective at the first call.
        """
        if self._out_degrees is None:
            self._out_degrees = self.plan.add_to_owners(self.local.out_degrees())
        return from_local(self._out_degrees.clone(), self.source_layout)

    def count_self_loops(self, dtype: torch.dtype) -> PartitionedTensor:
        """Returns the number of edges from source i to destination i, [destinations].

        Raises:
            ValueError: sources and destinations are not the same rows.
        """
        self._check_same_nodes("count_self_loops")
        return self._of_destinations(self.local.count_self_loops(dtype))

    def edge_ends(self) -> tuple[PartitionedTensor, PartitionedTensor]:
        """Returns the user's ids of the source and of the destination of each edge, [edges] int64.

        Made at the first call, which is collective, and kept; they are not to be changed.
        """
        return self.cached("edge ends", self._make_edge_ends)

    def _make_edge_ends(self) -> tuple[PartitionedTensor, PartitionedTensor]:
        source, destination = self.local.edge_ends()
        ids = self.plan.gather(self.source_layout.positions)
        return (
            from_local(ids[source], self.edge_layout),
            from_local(self.destination_layout.positions[destination], self.edge_layout),
        )

    def cached(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """Returns what `make` returned at the first call with this key.

        The result is kept with the structure. Its tensors are made outside of inference mode.
        """
        if key not in self._cache:
            with torch.inference_mode(False):
                self._cache[key] = make()
        result: _Result = self._cache[key]
        return result

    def spmm(
        self,
        message: str,
        reduce: str,
        x: Tensor | TableRows | None = None,
        e: Tensor | None = None,
    ) -> PartitionedTensor:
        """Reduces messages at destinations: see :func:`peergraph.aggregate.g_spmm`."""
        sources, edges = self._source("x", x), self._edge("e", e)
        [sources], _ = local_operands(self.plan, [autocast(sources)])
        return self._of_destinations(self.local.spmm(message, reduce, sources, edges))

    def spmm_transposed(
        self, message: str, x: Tensor | None = None, e: Tensor | None = None
    ) -> PartitionedTensor:
        """Sums messages at sources.

        Args:
            message: ``copy_u`` (x of the destination), ``copy_e`` (e of the edge) or ``mul``.
            x: [destinations, *features].
            e: [edges, *features].

        Returns:
            [sources, *features].
        """
        rows, edges = self._destination("x", x), self._edge("e", e)
        sums = self.local.spmm_transposed(message, rows, edges)
        return from_local(add_to_owners(self.plan, sums), self.source_layout)

    def spmm_add_self(
        self,
        x: Tensor | TableRows,
        self_weight: Tensor,
        e: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> PartitionedTensor:
        """Sums messages and weighted self rows: :func:`peergraph.aggregate.spmm_add_self`.

        `self_weight` is [] or [1] plain, or [destinations, 1] partitioned.
        """
        self._check_same_nodes("spmm_add_self")
        sources, edges = self._source("x", x), self._edge("e", e)
        by_row = self_weight.dim() == 2
        plain = None if by_row else self._parameter("self_weight", self_weight)
        [sources], [plain, offset] = local_operands(
            self.plan, [sources], [plain, self._parameter("bias", bias)]
        )
        weight = self._destination("self_weight", self_weight) if by_row else plain
        assert sources is not None and weight is not None
        return self._of_destinations(self.local.spmm_add_self(sources, weight, edges, offset))

    def spmm_linear(
        self,
        reduce: str,
        x: Tensor | TableRows,
        weight: Tensor,
        self_weight: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        self_x: Tensor | None = None,
        others: Sequence[tuple[PartitionedCsc, Tensor]] = (),
    ) -> PartitionedTensor:
        """Aggregates and multiplies: see :func:`peergraph.aggregate.spmm_linear`.

        Args:
            others: further structures over the same nodes, with their weights; rows are exchanged
                once for all.
        """
        if self_x is None and self_weight is not None:
            self._check_same_nodes("spmm_linear without self_x")
        plan, matrices = self._joined([structure for structure, _ in others])
        weights = [self._parameter("weight", weight)]
        weights += [self._parameter("others", other) for _, other in others]
        self_rows = self._destination("self_x", self_x)
        [sources], entered = local_operands(
            plan,
            [self._source("x", x)],
            [self._parameter("self_weight", self_weight), self._parameter("bias", bias), *weights],
        )
        assert sources is not None
        out = spmm_linear(
            [csc.matrix for csc in matrices],
            reduce,
            sources,
            [w for w in entered[2:] if w is not None],
            entered[0],
            entered[1],
            self_x=self_rows,
        )
        return self._of_destinations(out)

    def sddmm(
        self,
        op: str,
        lhs: Tensor,
        rhs: Tensor | None = None,
        lhs_target: str = "u",
        rhs_target: str = "v",
    ) -> PartitionedTensor:
        """Computes a value for each edge: see :func:`peergraph.aggregate.g_sddmm`."""
        left = autocast(self._at("lhs", lhs, lhs_target))
        right = autocast(self._at("rhs", rhs, rhs_target))
        left_halo, right_halo = lhs_target == "u", rhs_target == "u"
        [from_left, from_right], _ = local_operands(
            self.plan, [left if left_halo else None, right if right_halo else None]
        )
        left = from_left if left_halo else left
        right = from_right if right_halo else right
        assert left is not None
        out = self.local.sddmm(op, left, right, lhs_target, rhs_target)
        return from_local(out, self.edge_layout)

    def edge_softmax(self, scores: Tensor) -> PartitionedTensor:
        """Normalises scores of edges: see :func:`peergraph.aggregate.edge_softmax`.

        Nothing is exchanged: a rank has all edges to its destinations.
        """
        rows = local_rows("scores", scores, self.edge_layout, "edges")
        return from_local(self.local.edge_softmax(rows), self.edge_layout)

    def supports_attention(self, x: Tensor) -> bool:
        """Returns whether :meth:`attention` takes `x` [sources, heads, depth]."""
        return attention_fits(torch.empty((0, *x.shape[1:]), dtype=x.dtype, device=self.device))

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
        """Sums sources by attention in one pass: see :func:`peergraph.aggregate.attention`.

        `self_loops` is None or the number of nodes.
        """
        loops = None
        if self_loops is not None:
            self._check_same_nodes("self_loops")
            if self_loops != self.num_destinations:
                raise ValueError(f"self_loops must be None or all {self.num_destinations} "
                                 f"destinations, got {self_loops}")  # fmt: skip
            loops = self.destination_layout.local_count
        rows = self._destination("right", right)
        [sources, of_sources], [vectors] = local_operands(
            self.plan,
            [self._source("x", x), self._source("left", left)],
            [self._parameter("att", att)],
        )
        assert sources is not None
        out = self.local.attention(
            sources,
            of_sources,
            rows,
            att=vectors,
            negative_slope=negative_slope,
            self_loops=loops,
        )
        return self._of_destinations(out)

    def fuses_messages(self) -> bool:
        """Returns whether :meth:`reduce_message` runs as one kernel: on a GPU, with CuPy."""
        return self.local.fuses_messages()

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
        [sources], _ = local_operands(self.plan, [autocast(self._source("u", u))])
        out = self.local.reduce_message(
            message,
            u=sources,
            v=self._destination("v", v),
            e=self._edge("e", e),
            w=self._edge("w", w),
        )
        return self._of_destinations(out)

    def _source(self, name: str, x: Any) -> Tensor | None:
        return None if x is None else local_rows(name, x, self.source_layout, "sources")

    def _destination(self, name: str, x: Any) -> Tensor | None:
        return None if x is None else local_rows(name, x, self.destination_layout, "destinations")

    def _edge(self, name: str, e: Any) -> Tensor | None:
        return None if e is None else local_rows(name, e, self.edge_layout, "edges")

    def _parameter(self, name: str, tensor: Tensor | None) -> Tensor | None:
        return parameter(name, tensor, self.source_layout)

    def _at(self, name: str, operand: Any, target: str) -> Tensor | None:
        if target not in ("u", "v", "e"):
            raise ValueError(f"{name}_target must be 'u', 'v' or 'e', got {target!r}")
        find = {"u": self._source, "v": self._destination, "e": self._edge}[target]
        return find(name, operand)

    def _joined(self, others: list[PartitionedCsc]) -> tuple[HaloPlan, list[Csc]]:
        """Returns a plan for the sources of several structures, and their edges from its rows."""
        if not others:
            return self.plan, [self.local]
        for other in others:
            same = self.source_layout.same_rows(other.source_layout)
            if not same or not self.destination_layout.same_rows(other.destination_layout):
                raise ValueError(f"others must have the same nodes as {self}, got {other}")
        structures = [self, *others]
        key = ("joined", *map(id, others))  # Kept beside the structures, so that ids stay theirs.

        def make() -> tuple[HaloPlan, list[Csc], list[PartitionedCsc]]:
            return *_join(structures), others

        plan, matrices, _ = self.cached(key, make)
        return plan, matrices

    def _of_destinations(self, rows: Tensor) -> PartitionedTensor:
        return from_local(rows, self.destination_layout)

    def _check_same_nodes(self, what: str) -> None:
        if not self.source_layout.same_rows(self.destination_layout):
            raise ValueError(
                f"{what} needs destinations that are the sources, got sources of "
                f"{self.source_layout} and destinations of {self.destination_layout}"
            )

    def __repr__(self) -> str:
        group = self.destination_layout.group
        return (
            f"PartitionedCsc({self.num_sources} sources, {self.num_destinations} destinations, "
            f"{self.num_edges} edges, {self.local.num_edges} of them on rank {group.rank} of "
            f"{group.world_size}, {self.device})"
        )


def _join(structures: list[PartitionedCsc]) -> tuple[HaloPlan, list[Csc]]:
    """Returns one plan for the sources of several structures over the same nodes. Collective."""
    layout = structures[0].source_layout
    first = layout.offsets[layout.group.rank]
    internal = [
        torch.cat([torch.arange(s.plan.num_local, device=s.device) + first, s.plan.halo_rows])
        for s in structures
    ]
    plan, extended = HaloPlan.make(layout, torch.cat(internal))
    parts = split_rows(extended, [len(rows) for rows in internal])
    matrices = []
    for structure, rows in zip(structures, parts, strict=True):
        matrix = structure.local.matrix
        joined = CsrMatrix(
            matrix.indptr,
            rows[matrix.indices.long()].to(matrix.indices.dtype),
            plan.num_extended,
            edge_ids=matrix.edge_ids,
            max_chunks=matrix.max_chunks,
        )
        matrices.append(Csc.from_matrix(joined))
    return plan, matrices
