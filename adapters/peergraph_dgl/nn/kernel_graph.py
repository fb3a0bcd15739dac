"""The methods of a graph that DGL's layers call, on Peergraph's kernels without DGL's frames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from dgl.function.message import BinaryMessageFunction, CopyMessageFunction
from dgl.function.reducer import SimpleReduceFunction
from torch import Tensor

from peergraph.aggregate import FEATURE_DTYPES
from peergraph.integration import Unsupported, require

from ..backend import kernels
from ..backend.edge_list import Edges
from ..backend.graph_index import GraphIndex, unit_metagraph
from ..backend.message_passing import edge_lists_of

_OPS = ("add", "sub", "mul", "div")


class KernelGraph:
    """A graph of one relation for one call of a layer.

    Its data are plain dicts, without DGL's checks and scopes, and it caches degrees. Functions
    that the kernels do not support raise :class:`peergraph.integration.Unsupported`.
    """

    def __init__(self, graph: Any) -> None:
        require(len(graph.canonical_etypes) == 1, "there are several relations")
        self.edges = edge_lists_of(graph._graph)[0]
        self.is_block = graph.is_block
        self.device = self.edges.device
        self._homogeneous = graph._graph.number_of_ntypes() == 1
        self.srcdata: dict[str, Tensor] = {}
        self.dstdata: dict[str, Tensor] = self.srcdata if self._homogeneous else {}
        self.edata: dict[str, Tensor] = {}

    @property
    def _graph(self) -> GraphIndex[Edges]:
        """The index that DGL's functions, such as ``edge_softmax``, read."""
        ends = (
            [self.edges.num_src] if self._homogeneous else [self.edges.num_src, self.edges.num_dst]
        )
        return GraphIndex(unit_metagraph(len(ends)), ends, [self.edges])

    @contextmanager
    def local_scope(self) -> Iterator[None]:
        yield

    def num_src_nodes(self) -> int:
        return self.edges.num_src

    def num_dst_nodes(self) -> int:
        return self.edges.num_dst

    def num_edges(self) -> int:
        return self.edges.num_edges

    number_of_src_nodes = num_src_nodes
    number_of_dst_nodes = num_dst_nodes
    number_of_edges = num_edges

    def in_degrees(self) -> Tensor:
        return self.edges.in_degrees()

    def out_degrees(self) -> Tensor:
        return self.edges.out_degrees()

    def update_all(self, message_func: Any, reduce_func: Any) -> None:
        """As DGL's ``update_all`` with built-in functions."""
        require(isinstance(reduce_func, SimpleReduceFunction), "the reduce function is the user's")
        op, lhs, rhs = self._operands(message_func, "ue")
        out = kernels.spmm_zero_filled(self.edges, op, reduce_func.name, lhs, rhs)
        if reduce_func.name in ("max", "min"):
            out = out.masked_fill(out.isinf(), 0)
        self.dstdata[reduce_func.out_field] = out

    def apply_edges(self, func: Any) -> None:
        """As DGL's ``apply_edges`` with built-in functions."""
        require(isinstance(func, BinaryMessageFunction), "the edge function is the user's")
        targets = func.name[0], func.name[-1]
        op, lhs, rhs = self._operands(func, "".join(targets))
        self.edata[func.out_field] = kernels.sddmm(self.edges, op, lhs, rhs, *targets)

    def _operands(self, func: Any, ends: str) -> tuple[str, Tensor | None, Tensor | None]:
        """Returns the kernel's operation and its two operands."""
        data = {"u": self.srcdata, "v": self.dstdata, "e": self.edata}
        if isinstance(func, CopyMessageFunction):
            feature = self._feature(data[func.name[-1]], func.in_field)
            is_source = func.name == "copy_u"
            return ("copy_lhs", feature, None) if is_source else ("copy_rhs", None, feature)
        require(isinstance(func, BinaryMessageFunction), "the message function is the user's")
        lhs, op, rhs = func.name.split("_")
        require(op in _OPS and lhs + rhs == ends, f"the message function is {func.name}")
        left = self._feature(data[lhs], func.lhs_field)
        right = self._feature(data[rhs], func.rhs_field)
        if left.dtype != right.dtype and not torch.is_autocast_enabled(left.device.type):
            raise Unsupported(f"features are {left.dtype} and {right.dtype}")
        return op, left, right

    def _feature(self, data: dict[str, Tensor], name: str) -> Tensor:
        feature = data[name]
        if feature.dtype not in FEATURE_DTYPES or feature.device != self.device:
            raise Unsupported(f"features are {feature.dtype} on {feature.device}")
        return feature
