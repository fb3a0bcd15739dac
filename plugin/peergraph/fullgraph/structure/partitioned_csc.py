"""The edges of one relation, partitioned by destination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate import Csc, Sum, SumAddSelf, SumLinear
from peergraph.aggregate.ops.operands import autocast
from peergraph.aggregate.ops.product_order import multiplies_first
from peergraph.aggregate.ops.spmm_linear import products
from peergraph.aggregate.sparse.index_tensors import check_range
from peergraph.fullgraph.exchange.halo import Halo, HaloPlan, add_to_owners
from peergraph.fullgraph.exchange.local_operands import local_operands
from peergraph.fullgraph.exchange.machine_halo import make_halo
from peergraph.fullgraph.exchange.route import Route, move_rows
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.structure.edge_call import EdgeCall, local_rows
from peergraph.fullgraph.structure.in_kernel_sum import InKernelSums
from peergraph.fullgraph.structure.neighbor_sums import ModeChoice, NeighborSums, check_order
from peergraph.fullgraph.structure.operand_checks import local_rows_of
from peergraph.fullgraph.structure.partitioned_structure import (
    PartitionedStructure,
    kept_ends,
)
from peergraph.fullgraph.structure.shared_rows import current_sharing, join_once
from peergraph.fullgraph.tensor.conversions import from_local
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor

_Rows = TypeVar("_Rows", bound=Tensor)


class PartitionedCsc(PartitionedStructure):
    """The edges of one relation over all ranks, for features on the device.

    Rows of sources that lie on other ranks are exchanged (MG-GCN 4.1); each verb then runs on the
    edges of this rank, and gradients of the exchanged rows are added at their owners.

    Made by :meth:`from_local_edges`.
    """

    def __init__(
        self,
        source_layout: RowLayout,
        destination_layout: RowLayout,
        edge_layout: RowLayout,
        plan: Halo,
        local: Csc,
        mode: ModeChoice | None = None,
    ) -> None:
        super().__init__(source_layout, destination_layout, edge_layout)
        self.plan = plan
        """Which rows of sources are exchanged."""
        self.local = local
        """The edges of this rank, from extended rows of sources to local rows of destinations."""
        local.deterministic = True
        self._sums = NeighborSums(plan, local, mode)
        self._out_degrees: Tensor | None = None

    @classmethod
    def from_local_edges(
        cls,
        source_layout: RowLayout,
        destination_layout: RowLayout,
        edge_layout: RowLayout,
        source_internal_rows: Tensor,
        destination_local_rows: Tensor,
        *,
        mode: ModeChoice | None = None,
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
            mode: how rows are exchanged for sums: ``halo`` or ``blocks`` (see
                :class:`BlockStages`) or ``in_kernel`` (:class:`InKernelSums`), or a function that
                chooses one by the bytes of a row; equal on all ranks. None: by the number of rows.

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
        plan, sources = make_halo(source_layout, source_internal_rows)
        narrow = max(plan.num_extended, rows, count) < 2**31 - 1
        dtype = torch.int32 if narrow else torch.int64
        local = Csc.from_coo(
            sources.to(dtype),
            destination_local_rows.to(device, dtype),
            rows,
            plan.num_extended,
        )
        return cls(source_layout, destination_layout, edge_layout, plan, local, mode)

    @property
    def device(self) -> torch.device:
        """Device of this rank's rows."""
        return self.local.device

    @property
    def resident(self) -> PartitionedCsc:
        """This structure."""
        return self

    def like(self, resident: PartitionedCsc) -> PartitionedCsc:
        """Returns `resident`."""
        return resident

    @property
    def direct_plan(self) -> HaloPlan:
        """The plan by which each rank gets rows from their owners.

        Raises:
            NotImplementedError: rows of other machines come to each machine once.
        """
        if not isinstance(self.plan, HaloPlan):
            raise NotImplementedError(
                "rows in chunks over several machines: build the graph with offload=True"
            )
        return self.plan

    @property
    def mode(self) -> str:
        """How rows are exchanged for sums: a mode of all sums, or ``by width``.

        Set it to ``halo``, ``blocks`` or ``in_kernel``, equal on all ranks, for sums to come.
        """
        mode = self._sums.mode
        return mode if isinstance(mode, str) else "by width"

    @mode.setter
    def mode(self, mode: str) -> None:
        self._sums.set_mode(mode)

    @property
    def mode_choice(self) -> ModeChoice:
        """The mode, or the function that chooses it by width, for structures made of this one."""
        return self._sums.mode

    def mode_for(self, row_bytes: int) -> str:
        """Returns how rows of `row_bytes` bytes each are exchanged for sums."""
        return self._sums.mode_for(row_bytes)

    @property
    def last_exchange(self) -> str:
        """How rows of sources travelled in the last verb that exchanged any, and why so.

        For example ``halo, in stages``, ``in_kernel (partition 16, distance 4, 4 warps a block)``,
        or ``all at once: max is no sum``.
        """
        return self._sums.last_exchange

    @property
    def in_kernel_sums(self) -> InKernelSums:
        """Sums by a kernel that reads rows of other ranks; made collectively at the first use."""
        return self._sums.in_kernel

    def move_edge_rows(
        self, e: PartitionedTensor, before: PartitionedStructure, route: Route
    ) -> PartitionedTensor:
        """Moves features of edges: see :meth:`PartitionedStructure.move_edge_rows`."""
        rows = before._operands.edge("e", e)
        assert rows is not None
        return from_local(move_rows(rows.to_local(), route), self.edge_layout)

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
        self._operands.check_same_nodes("count_self_loops")
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

    def local_ends(self) -> tuple[Tensor, Tensor]:
        """Returns the ends of this rank's edges, [edges of this rank] int64 each. Not collective.

        Returns:
            The extended row of each edge's source and the local row of its destination.
        """
        return kept_ends(self.local)

    def reduce(self, of: Sum) -> PartitionedTensor:
        """Reduces messages at destinations: see :meth:`spmm`."""
        constant = of.x is not None and self.keeps(of.x, of.e)
        out = self._reduce(of, constant)
        # What is kept must not be changed with the result.
        return self._of_destinations(out.clone() if constant else out)

    def spmm_add_self(self, of: SumAddSelf) -> PartitionedTensor:
        """Sums messages and weighted self rows: :func:`peergraph.aggregate.spmm_add_self`.

        ``self_weight`` is [] or [1] plain, or [destinations, 1] partitioned.
        """
        x, self_weight, e, bias, backward, _ = of
        self._operands.check_same_nodes("spmm_add_self")
        check_order(backward)
        by_row = self_weight.dim() == 2
        plain = None if by_row else self._operands.parameter("self_weight", self_weight)
        offset = self._operands.parameter("bias", bias)
        sources, factors = self._operands.source("x", x), self._operands.edge("e", e)
        assert sources is not None
        rows, edges = sources.to_local(), local_rows_of(factors)
        _, [plain, offset] = local_operands(self.plan, [], [plain, offset])
        if by_row:
            plain = local_rows_of(self._operands.destination("self_weight", self_weight))
        weight = plain
        assert weight is not None
        constant = self.keeps(sources, factors)
        if self.plan.is_empty and not constant:
            out = self.local.spmm_add_self(SumAddSelf(rows, weight, edges, offset))
            return self._of_destinations(out)
        sums = self._reduce(Sum(of.message, "sum", sources, factors), constant)
        out = torch.addcmul(sums, rows, weight)
        return self._of_destinations(out if offset is None else out + offset)

    def spmm_linear(self, of: SumLinear) -> PartitionedTensor:
        """Aggregates and multiplies: see :func:`peergraph.aggregate.spmm_linear`.

        Rows are exchanged once for all structures.
        """
        structures, reduce = self._check_linear(of), of.reduce
        features = self._operands.source("x", of.x)
        self_rows = local_rows_of(self._operands.destination("self_x", of.self_x))
        assert features is not None
        rows = features.to_local()
        tensors = [of.self_weight, of.bias, *of.weights]
        names = ["self_weight", "bias", *(f"weights[{i}]" for i in range(len(of.weights)))]
        parameters = [self._operands.parameter(*pair) for pair in zip(names, tensors, strict=True)]
        own, offset, *entered = self._enter(parameters)
        matrices = [matrix for matrix in entered if matrix is not None]
        if own is not None and self_rows is None:
            self_rows = rows
        linear = reduce in ("sum", "mean")
        constant = linear and min([structure.keeps(features) for structure in structures])
        is_square = self.num_sources == self.num_destinations
        is_narrower = linear and multiplies_first(rows, of.weights, is_square=is_square)
        shared = None
        if len(structures) == 1 and not constant:
            shared = self._shared(features, len(matrices[0]) if is_narrower else rows.shape[1])
        if is_narrower and not constant and shared is None:
            out = None if own is None or self_rows is None else F.linear(self_rows, own, offset)
            for structure, matrix in zip(structures, matrices, strict=True):
                sums = structure._sums(Sum("copy_u", reduce, F.linear(rows, matrix)))
                if out is None:
                    out = sums if offset is None else sums + offset
                else:
                    out = out + sums if out.dtype != sums.dtype else out.add_(sums)
            assert out is not None
        elif constant or (len(structures) == 1 and not self.plan.is_empty and shared is None):
            reduced = (s._reduce(Sum("copy_u", reduce, features), constant) for s in structures)
            out = products(self.local.num_destinations, reduced, matrices, self_rows, own, offset)
        else:
            reason = f"{reduce} is no sum" if not linear else "several relations share them"
            self._sums.last_exchange = f"all at once: {reason}"
            if shared is None:
                plan, relations = join_once(structures)
                [sources], _ = local_operands(plan, [autocast(rows)])
            else:
                sources, relations = shared[0], [shared[1]]
            assert sources is not None
            # Of the extended rows the first are this rank's.
            of_x = of.self_x is None and sources.dtype == rows.dtype
            self_rows, [first, *rest] = None if of_x else self_rows, relations
            out = first.spmm_linear(
                SumLinear(reduce, sources, matrices, own, offset, self_rows, rest, "transpose")
            )
        return self._of_destinations(out)

    def on_edges(self, call: EdgeCall) -> PartitionedTensor:
        """Runs a function on this rank's edges: see :meth:`PartitionedStructure.on_edges`."""
        call = self._operands.check_call(call)
        if call.sources:
            self._sums.last_exchange = "all at once: a function of edges reads them"
        extended, plain = local_operands(
            self.plan,
            list(local_rows(call.sources).values()),
            list(call.parameters.values()),
        )
        rows = call.function(
            self.local,
            **dict(zip(call.sources, extended, strict=True)),
            **local_rows(call.destinations, call.edges, call.others),
            **dict(zip(call.parameters, plain, strict=True)),
        )
        actual_type = (tuple(rows.shape[1:]), rows.dtype)
        if call.row_type is not None:
            row_type = (tuple(call.row_type[0]), call.row_type[1])
            if actual_type != row_type:
                raise ValueError(f"row_type must be {actual_type} as the result, got {row_type}")
        if call.result == "source":
            return from_local(add_to_owners(self.plan, rows), self.source_layout)
        if isinstance(call.result, RowLayout):
            return from_local(rows, call.result)
        layout = self.edge_layout if call.result == "edge" else self.destination_layout
        return from_local(rows, layout)

    def run_layer(self, layer: Callable[[Any, Tensor], Tensor], x: Tensor) -> Tensor:
        """Runs a layer: see :class:`peergraph.aggregate.Structure`.

        On one rank the layer runs on plain tensors: no rows are exchanged.
        """
        if self.source_layout.group.world_size > 1 or type(x) is not PartitionedTensor:
            return layer(self, x)
        rows = local_rows_of(self._operands.source("x", x))
        assert rows is not None
        self._sums.last_exchange = "all at once: no rows are exchanged"
        return self._of_destinations(layer(self.local, rows))

    def fuses_messages(self) -> bool:
        """Returns whether :meth:`reduce_message` runs as one kernel: on a GPU, with CuPy."""
        return self.local.fuses_messages()

    def _reduce(self, of: Sum, constant: bool) -> Tensor:
        """Returns reduced messages by local row; of constant inputs those of the first call."""
        x, e = of.x, of.e
        rows = local_rows_of(self._operands.source("x", x))
        edges = local_rows_of(self._operands.edge("e", e))

        def run() -> Tensor:
            shared = None if rows is None else self._shared(x, rows.shape[1:].numel())
            if shared is None:
                return self._sums(of.of_rows(rows, edges, of.backward))
            self._sums.last_exchange = "all at once: several relations share them"
            check_order(of.backward)
            return shared[1].reduce(of.of_rows(shared[0], autocast(edges), "transpose"))

        return self._keep_sum(of, run) if constant else run()

    def _enter(self, parameters: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Returns parameters for computations on local rows; of a layer whose gradients are added
        up over the ranks at once, its own.
        """
        sharing = current_sharing()
        entered = [None if sharing is None else sharing.enter(p) for p in parameters]
        others = [p if e is None else None for p, e in zip(parameters, entered, strict=True)]
        _, alone = local_operands(self.plan, [], others)
        return [a if e is None else e for a, e in zip(alone, entered, strict=True)]

    def _shared(self, x: Any, columns: int) -> tuple[Tensor, Csc] | None:
        """Returns extended rows that the layer's relations share, and these edges, or None."""
        sharing = current_sharing()
        if sharing is None or type(x) is not PartitionedTensor:
            return None
        # Rows that a list of ids selected were sent to the layout of the sources: they are others.
        in_place = x.row_layout is self.source_layout and x.partitioned_dim == 0
        return sharing.sources(self, x, columns) if in_place else None

    def _of_destinations(self, rows: Tensor) -> PartitionedTensor:
        return from_local(rows, self.destination_layout)

    def __repr__(self) -> str:
        group = self.destination_layout.group
        return (
            f"PartitionedCsc({self.num_sources} sources, {self.num_destinations} destinations, "
            f"{self.num_edges} edges, {self.local.num_edges} of them on rank {group.rank} of "
            f"{group.world_size}, {self.device}; remote rows: {self.last_exchange})"
        )
