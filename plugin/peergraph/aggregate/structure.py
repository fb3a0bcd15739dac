"""The interface between layers and the structure of a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from peergraph.aggregate.messages.message import Message
from peergraph.aggregate.ops.attention import AttentionSum, attention_fits
from peergraph.aggregate.ops.spmm import Sum
from peergraph.aggregate.ops.spmm_add_self import SumAddSelf
from peergraph.aggregate.ops.spmm_linear import SumLinear
from peergraph.aggregate.sparse.edge_matrix import Backward
from peergraph.memory import TableRows

_Result = TypeVar("_Result")


class Structure(ABC):
    """Edges from sources to destinations, and the operations that run over them.

    :mod:`peergraph.aggregate.layers` use nothing else of a structure.
    :class:`peergraph.aggregate.Csc` holds all edges on one device, a
    :class:`peergraph.fullgraph.PartitionedStructure` those of one rank. Features of sources are
    [sources, *features], those of destinations [destinations, *features], those of edges
    [edges, *features] in the order of the structure's edge ids. All operations are differentiable
    in their tensors; :class:`peergraph.aggregate.Csc` says which ones more than once.
    """

    @property
    @abstractmethod
    def num_sources(self) -> int:
        """Returns the number of sources. Features of sources have one row for each."""

    @property
    @abstractmethod
    def num_destinations(self) -> int:
        """Returns the number of destinations: the rows of their features and of results."""

    @property
    @abstractmethod
    def num_edges(self) -> int:
        """Returns the number of edges. Features of edges have one row for each."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of features."""

    _cache: dict[Hashable, Any]

    transient: bool
    """Whether the structure serves one forward and one backward pass."""

    orders_products = False
    """Whether :meth:`spmm_linear` multiplies first where that is narrower."""

    def keeps(self, x: Tensor | TableRows, e: Tensor | None = None) -> bool:
        """Returns whether results of `x` are kept: it came before, unchanged, without gradient.

        With `e`, weights of edges, whether results of both are.

        A layer asks once for each call, since the call is remembered.
        """
        return False

    def keep(self, x: Tensor, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """Returns what `make` returned at the first call for `x`, of which :meth:`keeps` is true.

        The result must not be changed.
        """
        return make()

    @abstractmethod
    def in_degrees(self) -> Tensor:
        """Returns the number of edges to each destination, [destinations] int32 or int64."""

    @abstractmethod
    def out_degrees(self) -> Tensor:
        """Returns the number of edges from each source, [sources] int32 or int64."""

    @abstractmethod
    def count_self_loops(self, dtype: torch.dtype) -> Tensor:
        """Returns the number of edges from source i to destination i, [destinations]."""

    def cached(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """Returns what `make` returned at the first call with this key.

        The result is kept with the structure. Its tensors are made outside of inference mode, whose
        tensors could not serve gradients later.
        """
        if key not in self._cache:
            with torch.inference_mode(False):
                self._cache[key] = make()
        result: _Result = self._cache[key]
        return result

    def run_layer(self, layer: Callable[[Any, Tensor], Tensor], x: Tensor) -> Tensor:
        """Returns ``layer(structure, x)``, [destinations, *features].

        The structure that the layer gets, and the rows, may be the plain ones of this rank, where
        it has all of them: that costs less time of the host.

        Args:
            layer: computes rows of destinations from `x`, plain parameters and the structure,
                without random numbers.
            x: [sources, *features].
        """
        return layer(self, x)

    @abstractmethod
    def reduce(self, of: Sum) -> Tensor:
        """Reduces messages at destinations: see :meth:`spmm`."""

    def spmm(
        self,
        message: str,
        reduce: str,
        x: Tensor | TableRows | None = None,
        e: Tensor | None = None,
        *,
        backward: Backward = "auto",
        deterministic: bool | None = None,
    ) -> Tensor:
        """Reduces messages at destinations: see :func:`peergraph.aggregate.g_spmm`."""
        return self.reduce(Sum(message, reduce, x, e, backward, deterministic))

    @abstractmethod
    def spmm_transposed(
        self, message: str, x: Tensor | None = None, e: Tensor | None = None
    ) -> Tensor:
        """Sums messages at sources; `x` [destinations, *features] is by destination.

        Args:
            message: ``copy_u`` (x of the destination), ``copy_e`` (e of the edge) or ``mul``.

        Returns:
            [sources, *features].
        """

    @abstractmethod
    def spmm_add_self(self, of: SumAddSelf) -> Tensor:
        """Sums messages and weighted self rows: :func:`peergraph.aggregate.spmm_add_self`."""

    @abstractmethod
    def spmm_linear(self, of: SumLinear) -> Tensor:
        """Aggregates and multiplies: see :func:`peergraph.aggregate.spmm_linear`."""

    @abstractmethod
    def sddmm(
        self,
        op: str,
        lhs: Tensor,
        rhs: Tensor | None = None,
        lhs_target: str = "u",
        rhs_target: str = "v",
    ) -> Tensor:
        """Computes a value for each edge: see :func:`peergraph.aggregate.g_sddmm`."""

    @abstractmethod
    def edge_softmax(self, scores: Tensor) -> Tensor:
        """Normalises scores of edges: see :func:`peergraph.aggregate.edge_softmax`."""

    def supports_attention(self, x: Tensor) -> bool:
        """Returns whether :meth:`attention` takes `x` [sources, heads, depth]."""
        return attention_fits(x)

    @abstractmethod
    def attention(self, of: AttentionSum) -> Tensor:
        """Sums sources by attention in one pass: see :func:`peergraph.aggregate.attention`."""

    @abstractmethod
    def fuses_messages(self) -> bool:
        """Returns whether :meth:`reduce_message` runs as one kernel without writing messages."""

    @abstractmethod
    def reduce_message(self, message: Message, operands: Mapping[str, Tensor | None]) -> Tensor:
        """Reduces messages of the user: see :func:`peergraph.aggregate.message`.

        Args:
            message: of the user.
            operands: by symbol, as for :class:`Message`.
        """
