"""The methods that all structures of partitioned edges have."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor

from peergraph.aggregate import Csc, Message, Structure, attention_fits
from peergraph.aggregate.ops.operands import autocast
from peergraph.aggregate.ops.spmm import REDUCTIONS
from peergraph.aggregate.ops.spmm_linear import check_weights
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.structure.constant_inputs import ConstantInputs
from peergraph.fullgraph.structure.operand_checks import OperandChecks
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.memory import TableRows

if TYPE_CHECKING:
    from peergraph.fullgraph.exchange.route import Route

_Result = TypeVar("_Result")
_Rows = TypeVar("_Rows", bound=Tensor)

# Edges for each source from which on a sum takes longer than to tell whether its features changed.
_LEAST_KEPT_DEGREE = 2

RowsOf = Literal["source", "destination", "edge"]
"""Which rows a result has."""
RowType = tuple[Sequence[int], torch.dtype]
"""Shape and dtype of a row."""
Operands = Mapping[str, Tensor | None]
"""Operands of a function on edges, by the names of its arguments."""
NONE: Operands = MappingProxyType({})


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
        """Returns the number of sources of all ranks. Their features have one row for each."""
        return self.source_layout.size

    @property
    def num_destinations(self) -> int:
        """Returns the number of destinations of all ranks. Their features, and aggregated messages,
        have one row for each.
        """
        return self.destination_layout.size

    @property
    def num_edges(self) -> int:
        """Returns the number of edges of all ranks. Their features have one row for each."""
        return self.edge_layout.size

    @property
    @abstractmethod
    def resident(self) -> Any:
        """The same edges on the device, over features on the device: a :class:`PartitionedCsc`."""

    @abstractmethod
    def like(self, resident: Any) -> PartitionedStructure:
        """Returns a structure of this kind with other edges between the same nodes.

        Args:
            resident: these edges on the device, a :class:`PartitionedCsc`.
        """

    def cached(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """Returns what `make` returned at the first call with this key.

        The result is kept with the structure. Its tensors are made outside of inference mode.
        """
        if key not in self._cache:
            with torch.inference_mode(False):
                self._cache[key] = make()
        result: _Result = self._cache[key]
        return result

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

    @abstractmethod
    def keep(self, x: Tensor, key: Hashable, make: Callable[[], _Rows]) -> _Rows:
        """Returns what `make` returned at the first call for `x`, of which :meth:`keeps` is true.

        The result must not be changed.
        """

    def _check_spmm_linear(
        self,
        reduce: str,
        x: Any,
        weight: Tensor,
        self_weight: Tensor | None,
        bias: Tensor | None,
        self_x: Any,
        others: Sequence[tuple[Any, Tensor]],
    ) -> tuple[list[Any], list[Tensor]]:
        """Checks the arguments of :meth:`spmm_linear`.

        Returns:
            This structure and the other ones, and the weight of each.

        Raises:
            ValueError: an unknown reduction, weights of other shapes, or structures of other nodes.
        """
        if reduce not in REDUCTIONS:
            raise ValueError(f"reduce must be one of {', '.join(REDUCTIONS)}, got {reduce!r}")
        if self_x is None and self_weight is not None:
            self._operands.check_same_nodes("spmm_linear without self_x")
        structures = [self, *(structure for structure, _ in others)]
        for other in structures[1:]:
            same = self.source_layout.same_rows(other.source_layout)
            if not same or not self.destination_layout.same_rows(other.destination_layout):
                raise ValueError(f"others must have the same nodes as {self}, got {other}")
        weights = [weight, *(other for _, other in others)]
        check_weights(x, weights, self_weight, self_x, bias)
        return structures, weights

    @abstractmethod
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
        row_type: RowType | None = None,
    ) -> PartitionedTensor:
        """Runs a function on the edges of each rank. Collective; differentiable.

        The function must be the same on all ranks. It computes the rows of a destination, or of the
        edges into it, from these edges alone: it may be called with the edges into some of the
        destinations at a time.

        Args:
            function: called with a :class:`peergraph.aggregate.Csc`, and by name with plain tensors
                that have the rows of its sources, destinations and edges.
            sources, destinations, edges: partitioned tensors with these rows in dimension 0; None
                is passed on.
            others: partitioned tensors with the rows of selected destinations or edges
                (:meth:`RowLayout.select_mask`), or of the edges that these were selected of.
            parameters: plain tensors that are equal on all ranks. Others that the function uses get
                no gradient.
            result: the rows that the function returns, or the layout of a selection of destinations
                or edges. Rows of sources are added up over ranks.
            row_type: shape and dtype of a row of the result, for functions of `others`; that of
                other functions is found on few rows.

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
            run, sources=sources, destinations=destinations, edges=edges, result="edge"
        )

    def edge_softmax(self, scores: Tensor) -> PartitionedTensor:
        """Normalises scores of edges: see :func:`peergraph.aggregate.edge_softmax`.

        Nothing is exchanged: a rank has all edges to its destinations.
        """
        return self.on_edges(Csc.edge_softmax, edges={"scores": scores}, result="edge")

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
        run = functools.partial(Csc.spmm_transposed, message=message, backward="transpose")
        return self.on_edges(run, destinations={"x": x}, edges={"e": e}, result="source")

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
        if self_loops is not None:
            self._check_loops(self_loops)

        loops = self_loops is not None
        return self.on_edges(
            functools.partial(_attend, negative_slope=negative_slope, loops=loops),
            sources={"x": x, "left": left},
            destinations={"right": right},
            parameters={"att": att},
        )

    def _check_loops(self, count: int) -> None:
        self._operands.check_same_nodes("self_loops")
        size = self.destination_layout.size
        if count != size:
            raise ValueError(f"self_loops must be None or all {size} destinations, got {count}")

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
        return self.on_edges(
            functools.partial(Csc.reduce_message, message=message),
            sources={"u": autocast(u)},
            destinations={"v": v},
            edges={"e": e, "w": w},
        )


def _attend(csc: Csc, *, negative_slope: float, loops: bool, **operands: Tensor) -> Tensor:
    """Returns the sums of :meth:`PartitionedStructure.attention` over a rank's or chunk's edges."""
    return csc.attention(
        **operands,
        negative_slope=negative_slope,
        # Source i is destination i, for each destination i; other sources follow.
        self_loops=csc.num_destinations if loops else None,
        deterministic=True,
    )


def kept_ends(csc: Csc) -> tuple[Tensor, Tensor]:
    """Returns the source and the destination of each edge, [edges] int64, kept with the edges."""
    return csc.cached("edge ends", csc.edge_ends)


def constant_inputs(*inputs: Any) -> tuple[Tensor, ...]:
    """Returns the inputs that are given, by which kept results are found."""
    return tuple(tensor for tensor in inputs if tensor is not None)
