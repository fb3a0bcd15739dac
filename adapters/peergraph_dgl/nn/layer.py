"""The base class of the layers: the choice between fused code, kernels step by step, and DGL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from peergraph.aggregate import FEATURE_DTYPES
from peergraph.integration import Unsupported, note, note_fallback, require

from ..backend.materialize import materialize
from ..backend.message_passing import install
from .kernel_graph import KernelGraph

Features = Tensor | tuple[Tensor, Tensor]
"""Features of all nodes, or of sources and of destinations."""


class FastLayer(torch.nn.Module):
    """Base class of the layers, before one of DGL's layer classes. Has no state.

    A call runs the first of these that supports it: :meth:`fused`, which calls a function of
    :mod:`peergraph.aggregate.layers`; DGL's ``forward`` on Peergraph's kernels, step by step; DGL's
    ``forward`` on the graph itself. The results are the same up to rounding.
    """

    dgl_class: type[torch.nn.Module]

    if TYPE_CHECKING:  # The attributes that DGL's constructors set have no types.

        def __getattr__(self, name: str) -> Any: ...

    def forward(self, graph: Any, *args: Any, **kwargs: Any) -> Any:
        """As DGL's ``forward``."""
        install()  # DGL's edge_softmax must support the index of a KernelGraph.
        name = type(self).__name__
        try:
            kernel_graph = KernelGraph(graph)
            try:
                out = self.fused(kernel_graph, *args, **kwargs)
                note(f"{name}: peergraph, fused over {kernel_graph.edges.num_edges} edges")
                return out
            except Unsupported as reason:
                self.check_steps()
                fused_reason = str(reason)
            out = super().forward(kernel_graph, *args, **kwargs)
            note(f"{name}: peergraph's kernels in DGL's steps, {fused_reason}")
            return out
        except Unsupported as reason:
            note_fallback(self, f"{name}: DGL, {reason}")
        return super().forward(graph, *args, **kwargs)

    def fused(self, graph: KernelGraph, *args: Any, **kwargs: Any) -> Any:
        """Computes the layer with fused kernels.

        Raises:
            Unsupported: before any random number is drawn; DGL's code runs and draws it.
        """
        raise NotImplementedError

    def check_steps(self) -> None:
        """Raises Unsupported if a :class:`KernelGraph` cannot run DGL's ``forward``."""

    def _check(
        self,
        graph: KernelGraph,
        feat: Features,
        dtype: torch.dtype,
        *modules: Any,
        reads_target: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Checks the arguments that all layers have, and reads features into memory.

        Args:
            graph: the graph of the call.
            feat: node features.
            dtype: dtype of the layer's parameters.
            modules: linear layers whose weights the fused code reads without calling them.
            reads_target: whether the layer reads features of destinations.

        Returns:
            Features of sources, and of destinations; None if these are the first rows of sources.
        """
        require(not torch.is_autocast_enabled(graph.device.type), "there is autocast")
        for module in modules:
            require(
                is_plain_module(module, torch.nn.Linear), "a linear layer is modified or has hooks"
            )
        if isinstance(feat, tuple):
            source, target = materialize(feat[0]), materialize(feat[1])
            require(target.shape[0] == graph.num_dst_nodes(), "features have other rows")
        else:
            source, target = materialize(feat), None
            same_nodes = graph.is_block or graph.num_src_nodes() == graph.num_dst_nodes()
            require(same_nodes or not reads_target, "destinations have no features")
        require(source.shape[0] == graph.num_src_nodes(), "features have other rows")
        for x in (source,) if target is None else (source, target):
            if x.dim() != 2 or x.dtype != dtype or x.device != graph.device:
                raise Unsupported(f"features are {list(x.shape)}, {x.dtype} on {x.device}")
        require(dtype in FEATURE_DTYPES, f"features are {dtype}")
        return source, target

    def _check_edge_weight(self, graph: KernelGraph, weight: Any, x: Tensor) -> Tensor | None:
        """Returns a weight for each edge, [edges]; Unsupported if it has features or another
        dtype.
        """
        if weight is None:
            return None
        weight = materialize(weight)
        if weight.numel() != graph.num_edges() or weight.shape[:1] != (graph.num_edges(),):
            raise Unsupported(f"edge_weight is {list(weight.shape)}")
        if weight.dtype != x.dtype or weight.device != x.device:
            raise Unsupported(f"edge_weight is {weight.dtype} on {weight.device}")
        flat: Tensor = weight.reshape(-1)
        return flat

    def _check_degrees(self, graph: KernelGraph) -> None:
        """Raises Unsupported if DGL's code raises for nodes without in-edges."""
        if not self._allow_zero_in_degree and graph.edges.has_zero_in_degrees():
            raise Unsupported("there are nodes without in-edges")


def check_scores(leaky_relu: Any, dropout: Any) -> None:
    """Raises Unsupported unless attention has leaky ReLU and dropout without hooks."""
    require(
        is_plain_module(leaky_relu, torch.nn.LeakyReLU),
        "scores have the user's activation or hooks",
    )
    require(is_plain_module(dropout, torch.nn.Dropout), "attention has the user's dropout or hooks")


def drop_features(dropout: Any, source: Tensor, target: Tensor | None) -> Any:
    """Applies dropout to both ends in DGL's order."""
    return dropout(source), None if target is None else dropout(target)


def is_plain_module(module: Any, cls: type[torch.nn.Module]) -> bool:
    """Returns whether a module is of the class itself, and has no hooks."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return type(module) is cls and not any(hooks)
