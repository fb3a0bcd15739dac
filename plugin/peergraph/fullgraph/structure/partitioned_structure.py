"""The methods that all structures of partitioned edges have."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from peergraph.aggregate import (
    AttentionSum,
    Csc,
    Message,
    Structure,
    Sum,
    SumLinear,
    attention_fits,
)
from peergraph.aggregate.ops.operands import autocast
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.structure.constant_inputs import ConstantInputs
from peergraph.fullgraph.structure.edge_call import EdgeCall
from peergraph.fullgraph.structure.neighbor_sums import check_order
from peergraph.fullgraph.structure.operand_checks import OperandChecks
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.memory import TableRows

if TYPE_CHECKING:
    from peergraph.fullgraph.exchange.route import Route

_Rows = TypeVar("_Rows", bound=Tensor)

# Edges for each source from which on a sum takes longer than to tell whether its features changed.
_LEAST_KEPT_DEGREE = 2


class PartitionedStructure(Structure):
    """The edges of one relation over all ranks; each rank holds the edges to its destinations.

    Features are :class:`PartitionedTensor`: those of sources have the rows of `source_layout`,
    those of destinations of `destination_layout`, those of edges of `edge_layout`. Parameters are
    plain tensors, equal on all ranks. All verbs are collective. Sums are in a fixed order, so that
    two runs are equal bit for bit.
    """

    transient = False
    """Partitioned structures serve many passes."""
    orders_products = True
    """:meth:`spmm_linear` multiplies first where that is narrower (MG-GCN 4.4)."""

    def __init__(
        self, source_layout: RowLayout, destination_layout: RowLayout, edge_layout: RowLayout
    ) -> None:
        self.source_layout = source_layout
        """Rows of the features of sources."""
        self.destination_layout = destination_layout
        """Rows of the features of destinations."""
        self.edge_layout = edge_layout
        """Rows of the features of edges."""
        self.keeps_results = True
        """Whether sums of constant features are kept; they take as much memory as the features."""
        self._operands = OperandChecks(source_layout, destination_layout, edge_layout)
        self._constants = ConstantInputs(destination_layout.group)
        self._cache: dict[Hashable, Any] = {}

    @property
    def num_sources(self) -> int:
        """Returns the number of sources of all ranks."""
        return self.source_layout.size

    @property
    def num_destinations(self) -> int:
        """Returns the number of destinations of all ranks."""
        return self.destination_layout.size

    @property
    def num_edges(self) -> int:
        """Returns the number of edges of all ranks."""
        return self.edge_layout.size

    @property
    @abstractmethod
    def resident(self) -> Any:
        """The same edges on the device, over features on the device: a :class:`PartitionedCsc`."""

    @abstractmethod
    def like(self, resident: Any) -> PartitionedStructure:
        """Returns a structure of this kind with other edges, given as a :class:`PartitionedCsc`."""

    @abstractmethod
    def edge_ends(self) -> tuple[PartitionedTensor, PartitionedTensor]:
        """Returns the user's ids of the source and of the destination of each edge, [edges] int64.

        Made at the first call, which is collective, and kept; they are not to be changed.
        """

    def keeps(self, x: Tensor | TableRows, e: Tensor | None = None) -> bool:
        """Returns whether results of these features are kept: they came before. Collective.

        They are leaves that need no gradient. Each call of a layer asks once, since the call reads
        the features to tell whether they have changed. Sums over few edges, which take no longer
        than that, are not kept.
        """
        return self._keeps_sums and self._constants.note(*constant_inputs(x, e))

    @property
    def _keeps_sums(self) -> bool:
        """Whether sums of constant features are worth to be kept."""
        enough = self.num_edges >= _LEAST_KEPT_DEGREE * self.num_sources
        return self.keeps_results and enough

    def keep(self, x: Tensor, key: Hashable, make: Callable[[], _Rows]) -> _Rows:
        """Returns what `make` returned at the first call for `x`, of which :meth:`keeps` is true.

        The result must not be changed.
        """
        return self._constants.keep((x,), key, make)

    def _keep_sum(self, of: Sum, make: Callable[[], _Rows]) -> _Rows:
        """Returns what `make` returned at the first call for a sum of constant inputs."""
        kind = self.device.type
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        key = (*of.settings().values(), cast)
        return self._constants.keep(constant_inputs(of.x, of.e), key, make)

    def _check_linear(self, of: SumLinear) -> list[Any]:
        """Returns this structure and the other ones of a sum.

        Raises:
            ValueError: an unknown reduction, weights of other shapes, or structures of other nodes.
        """
        # All arguments are named: a new one must not be ignored.
        _, _, _, self_weight, _, self_x, others, backward, _ = of
        of.check()
        check_order(backward)
        if self_x is None and self_weight is not None:
            self._operands.check_same_nodes("spmm_linear without self_x")
        for other in others:
            same = self.source_layout.same_rows(other.source_layout)
            if not same or not self.destination_layout.same_rows(other.destination_layout):
                raise ValueError(f"others must have the same nodes as {self}, got {other}")
        return [self, *others]

    @abstractmethod
    def on_edges(self, call: EdgeCall) -> PartitionedTensor:
        """Runs a function on the edges of each rank. Collective; differentiable.

        Raises:
            TypeError, ValueError: an operand with other rows.
        """

    @abstractmethod
    def move_edge_rows(
        self, e: PartitionedTensor, before: PartitionedStructure, route: Route
    ) -> PartitionedTensor:
        """Returns features of the edges of another structure with the rows of these edges.

        Collective; differentiable.

        Args:
            e: features of the edges of `before`, partitioned along dimension 0.
            before: a structure of the same edges on other ranks.
            route: from their rows to these.

        Raises:
            ValueError: `e` has other rows.
        """

    def sddmm(
        self,
        op: str,
        lhs: Tensor,
        rhs: Tensor | None = None,
        lhs_target: str = "u",
        rhs_target: str = "v",
    ) -> PartitionedTensor:
        """Computes a value for each edge: see :func:`peergraph.aggregate.g_sddmm`."""
        run = functools.partial(Csc.sddmm, op=op, lhs_target=lhs_target, rhs_target=rhs_target)
        by_rows: dict[str, dict[str, Tensor | None]] = {"u": {}, "v": {}, "e": {}}
        for name, operand, target in (("lhs", lhs, lhs_target), ("rhs", rhs, rhs_target)):
            if target not in by_rows:
                raise ValueError(f"{name}_target must be 'u', 'v' or 'e', got {target!r}")
            by_rows[target][name] = autocast(operand)
        sources, destinations, edges = by_rows.values()
        return self.on_edges(
            EdgeCall(run, sources=sources, destinations=destinations, edges=edges, result="edge")
        )

    def edge_softmax(self, scores: Tensor) -> PartitionedTensor:
        """Normalises scores of edges: see :func:`peergraph.aggregate.edge_softmax`.

        Nothing is exchanged: a rank has all edges to its destinations.
        """
        return self.on_edges(EdgeCall(Csc.edge_softmax, edges={"scores": scores}, result="edge"))

    def spmm_transposed(
        self, message: str, x: Tensor | None = None, e: Tensor | None = None
    ) -> PartitionedTensor:
        """Sums messages at sources: see :meth:`peergraph.aggregate.Structure.spmm_transposed`."""
        run = functools.partial(Csc.spmm_transposed, message=message, backward="transpose")
        return self.on_edges(EdgeCall(run, destinations={"x": x}, edges={"e": e}, result="source"))

    def supports_attention(self, x: Tensor) -> bool:
        """Returns whether :meth:`attention` takes `x` [sources, heads, depth]."""
        return attention_fits(torch.empty((0, *x.shape[1:]), dtype=x.dtype, device=self.device))

    def attention(self, of: AttentionSum) -> PartitionedTensor:
        """Sums sources by attention in one pass: see :func:`peergraph.aggregate.attention`.

        ``self_loops`` is None or the number of nodes.
        """
        if of.self_loops is not None:
            self._check_loops(of.self_loops)
        settings = {**of._asdict(), "deterministic": True}
        x, left, right, att = (settings.pop(name) for name in ("x", "left", "right", "att"))
        return self.on_edges(
            EdgeCall(
                functools.partial(_attend, **settings),
                sources={"x": x, "left": left},
                destinations={"right": right},
                parameters={"att": att},
            )
        )

    def _check_loops(self, count: int) -> None:
        self._operands.check_same_nodes("self_loops")
        size = self.destination_layout.size
        if count != size:
            raise ValueError(f"self_loops must be None or all {size} destinations, got {count}")

    def reduce_message(
        self, message: Message, operands: Mapping[str, Tensor | None]
    ) -> PartitionedTensor:
        """Reduces messages of the user: see :func:`peergraph.aggregate.message`."""
        run = functools.partial(_reduce_message, message=message)
        sources, destinations = {"u": autocast(operands.get("u"))}, {"v": operands.get("v")}
        edges = {name: operands.get(name) for name in ("e", "w")}
        return self.on_edges(EdgeCall(run, sources=sources, destinations=destinations, edges=edges))


def _attend(csc: Csc, *, self_loops: int | None, **arguments: Any) -> Tensor:
    """Returns the sums of :meth:`PartitionedStructure.attention` over a rank's or chunk's edges."""
    # Source i is destination i, for each destination i; other sources follow.
    loops = None if self_loops is None else csc.num_destinations
    return csc.attention(AttentionSum(self_loops=loops, **arguments))


def _reduce_message(csc: Csc, *, message: Message, **operands: Tensor | None) -> Tensor:
    return message.reduce_over(csc, operands)


def kept_ends(csc: Csc) -> tuple[Tensor, Tensor]:
    """Returns the source and the destination of each edge, [edges] int64, kept with the edges."""
    return csc.cached("edge ends", csc.edge_ends)


def constant_inputs(*inputs: Any) -> tuple[Tensor, ...]:
    """Returns the inputs that are given, by which kept results are found."""
    return tuple(tensor for tensor in inputs if tensor is not None)
