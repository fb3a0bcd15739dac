"""DGL's HGTConv on one attention over the edges of all relations."""

from __future__ import annotations

from typing import Any

import dgl.nn as dgl_nn
import torch
import torch.nn.functional as F
from dgl.nn.pytorch.linear import TypedLinear
from torch import Tensor

from peergraph.aggregate import JointPairs, Relation, layers
from peergraph.aggregate.layers import RelationMaps
from peergraph.integration import Unsupported, require

from ..backend.edge_list import EdgeList, Edges
from ..backend.kernels import segment_mm
from ..backend.materialize import materialize
from .kernel_graph import KernelGraph
from .layer import FastLayer, is_plain_module


class HGTConv(FastLayer, dgl_nn.HGTConv):  # type: ignore[misc]
    """DGL's HGTConv; it writes no keys, values or messages of edges.

    DGL multiplies the rows of both ends of each edge by the matrices of the edge's type.
    """

    dgl_class = dgl_nn.HGTConv

    def check_steps(self) -> None:
        raise Unsupported("messages are a function of the layer")

    def fused(
        self, graph: KernelGraph, x: Tensor, ntype: Any, etype: Any, *, presorted: bool = False
    ) -> Tensor:
        edges, weight = graph.edges, self.linear_k.W
        maps = [self.linear_k, self.linear_q, self.linear_v, self.linear_a]
        for linear in (*maps, *self.relation_att, *self.relation_msg):
            plain = is_plain_module(linear, TypedLinear) and linear.regularizer is None
            require(plain, "a typed linear layer is modified or has hooks")
        x, _ = self._check(graph, x, weight.dtype)
        node_types = _types(ntype, x.shape[0], x.device)
        pairs = _joined(edges, _types(etype, edges.num_edges, x.device), len(self.relation_pri[0]))
        source_types = _check_range(node_types, len(weight), "ntype")
        columns, targets = pairs.chosen[0], slice(0, pairs.sizes[1])
        sources = _ByType(source_types[columns], len(weight))
        destinations = _ByType(node_types[targets], len(weight))
        keys, values = sources.multiply(x[columns], self.linear_k.W, self.linear_v.W)
        (queries,) = destinations.multiply(x[targets], self.linear_q.W)
        sums = layers.typed_dot_attention(
            pairs,
            keys,
            values,
            queries,
            RelationMaps(
                torch.stack([linear.W for linear in self.relation_att]),
                torch.stack([linear.W for linear in self.relation_msg]),
                range(len(self.relation_pri[0])),
                torch.stack(list(self.relation_pri), 1).unbind(),
            ),
        )[1]
        (h,) = destinations.multiply(sums, self.linear_a.W)
        count = edges.num_dst
        h = self.drop(F.pad(h, (0, 0, 0, count - h.shape[0])))
        target_x = x[:count]
        share = torch.sigmoid(self.skip[node_types[:count]]).unsqueeze(-1)
        own = target_x if target_x.shape == h.shape else target_x @ self.residual_w
        h = h * share + own * (1 - share)
        result: Tensor = self.norm(h) if self.use_norm else h
        return result


def _types(types: Any, count: int, device: torch.device) -> Tensor:
    require(isinstance(types, Tensor), "types are no tensor")
    values = materialize(types)
    fits = values.shape == (count,) and values.device == device
    require(fits and not values.is_floating_point(), f"types are {list(values.shape)}")
    return values.long()


def _check_range(types: Tensor, count: int, name: str) -> Tensor:
    """Returns the types; raises Unsupported for others than 0 .. count - 1. Synchronises."""
    if len(types):
        low, high = map(int, torch.aminmax(types))
        require(low >= 0 and high < count, f"{name} has types that the layer lacks")
    return types


def _joined(edges: Edges, types: Tensor, count: int) -> JointPairs:
    """Returns the edges by type; sources and destinations are two types of nodes. Synchronises."""
    if not isinstance(edges, EdgeList):
        raise Unsupported("edges are partitioned")
    _check_range(types, count, "etype")
    order = types.argsort(stable=True)
    ends = torch.stack([edges.src[order], edges.dst[order]])
    lengths = types.bincount(minlength=count).tolist()
    relations = [
        Relation(part, edges.num_src, 1, sources=0)
        for part in ends.split(lengths, 1)  # type: ignore[no-untyped-call]
    ]
    sizes = edges.num_src, edges.num_dst
    return JointPairs(relations, sizes, gradients=torch.is_grad_enabled())


class _ByType:
    """Multiplies each row by the matrix of its type.

    Args:
        types: [rows] int64.
        count: the number of types.
    """

    def __init__(self, types: Tensor, count: int) -> None:
        self._lengths = types.bincount(minlength=count)
        self._order: Tensor | None = None
        if not bool((types[1:] >= types[:-1]).all()):
            self._order = types.argsort(stable=True)
            self._places = self._order.argsort()

    def multiply(self, x: Tensor, *matrices: Tensor) -> list[Tensor]:
        """Returns the products of `x` [rows, k] with each of the matrices [types, k, n]."""
        rows = x if self._order is None else x.index_select(0, self._order)
        products = [segment_mm(rows, matrix, self._lengths) for matrix in matrices]
        if self._order is None:
            return products
        return [product.index_select(0, self._places) for product in products]
