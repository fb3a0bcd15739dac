"""PyG's ready-made models: bias, ReLU and dropout between layers are one pass over the features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import models as pyg
from torch_geometric.nn.models.basic_gnn import BasicGNN

from peergraph.aggregate import layers
from peergraph.integration import is_explaining, note

from ..compat import has_hooks, is_traced, model_trim
from ..data.lazy_features import LazyRows
from .withheld_bias import WithheldBias


class FastModel(BasicGNN):  # type: ignore[misc]
    """A model of PyG whose activations are joined where nothing looks at their steps.

    Mixed into a subclass of one of PyG's models, before it; has no state of its own.
    """

    pyg_class: type[BasicGNN]

    def forward(
        self,
        x: Any,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        batch_size: int | None = None,
        num_sampled_nodes_per_hop: list[int] | None = None,
        num_sampled_edges_per_hop: list[int] | None = None,
    ) -> Any:
        """As PyG's; dropout draws other elements than PyG's with the same seed."""
        sampled = num_sampled_nodes_per_hop, num_sampled_edges_per_hop
        # PyG refuses to trim both weights and features of edges.
        trims_both = sampled[0] is not None and edge_weight is not None and edge_attr is not None
        plain = type(x) in (Tensor, LazyRows) and not trims_both
        if plain and _joins_activations(self):
            return self._with_joined_activations(x, edge_index, edge_weight, edge_attr, *sampled)
        return BasicGNN.forward(
            self, x, edge_index, edge_weight, edge_attr, batch, batch_size, *sampled
        )

    def _with_joined_activations(
        self,
        x: Any,
        edge_index: Any,
        edge_weight: Tensor | None,
        edge_attr: Tensor | None,
        nodes: list[int] | None,
        edges: list[int] | None,
    ) -> Any:
        """PyG's loop over layers without norms and jumping knowledge."""
        # To ask a module for another one takes as long as a launch.
        convs, trim, dropout = self.convs, model_trim(self), self.dropout
        last, relu = len(convs) - 1, self.act is not None
        p = dropout.p if dropout.training else 0.0
        for i, conv in enumerate(convs):
            if nodes is not None:
                value = edge_weight if edge_weight is not None else edge_attr
                x, edge_index, value = trim(i, nodes, edges, x, edge_index, value)
                if edge_weight is not None:
                    edge_weight = value
                else:
                    edge_attr = value
            of_edges = {}
            if self.supports_edge_weight:
                of_edges["edge_weight"] = edge_weight
            if self.supports_edge_attr:
                of_edges["edge_attr"] = edge_attr
            if i == last:
                return conv(x, edge_index, **of_edges)
            with WithheldBias(None if has_hooks(conv) else conv) as withheld:
                x = conv(x, edge_index, **of_edges)
            if is_explaining():
                note("activation: peergraph, bias, relu and dropout in one pass")
            x = layers.activate(x, withheld.bias, relu=relu, dropout=p)
        return x

    def __prepare_scriptable__(self) -> BasicGNN:
        """TorchScript compiles PyG's model."""
        model: BasicGNN = object.__new__(self.pyg_class)
        model.__dict__ = dict(self.__dict__)
        return model


def _joins_activations(model: BasicGNN) -> bool:
    """Returns whether the steps between layers are a ReLU and a dropout that nobody looks at."""
    if torch.compiler.is_compiling() or is_traced():
        return False
    # To ask a module for an attribute that it lacks takes as long as a launch.
    if model.jk_mode is not None or "lin" in model._modules or "lin" in model.__dict__:
        return False
    for norm in model.norms:
        if type(norm) is not torch.nn.Identity or has_hooks(norm):
            return False
    dropout, act = model.dropout, model.act
    if type(dropout) is not torch.nn.Dropout or has_hooks(dropout):
        return False
    return act is None or (type(act) is torch.nn.ReLU and not has_hooks(act))


class GCN(FastModel, pyg.GCN):  # type: ignore[misc]
    """PyG's GCN."""

    pyg_class = pyg.GCN


class GraphSAGE(FastModel, pyg.GraphSAGE):  # type: ignore[misc]
    """PyG's GraphSAGE."""

    pyg_class = pyg.GraphSAGE


class GIN(FastModel, pyg.GIN):  # type: ignore[misc]
    """PyG's GIN."""

    pyg_class = pyg.GIN


class GAT(FastModel, pyg.GAT):  # type: ignore[misc]
    """PyG's GAT."""

    pyg_class = pyg.GAT
