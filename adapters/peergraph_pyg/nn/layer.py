"""The base of all layers: it decides which calls run on Peergraph, and aggregates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn.aggr import (
    MaxAggregation,
    MeanAggregation,
    MinAggregation,
    SumAggregation,
)
from torch_geometric.nn.conv import MessagePassing

from peergraph.aggregate import FEATURE_DTYPES, Structure, TracedStructure, layers, supports
from peergraph.aggregate.layers import without_autocast
from peergraph.fullgraph import PartitionedEdgeIndex
from peergraph.integration import Unsupported, is_explaining, note, note_fallback, require

from .. import compat
from ..data.csc_cache import FINDER, csc_of
from ..data.lazy_features import LazyRows, is_plain, rows_or_tensor
from .features import (
    Ends,
    ends_of,
    is_partitioned,
    kind_of,
    self_rows,
    table_rows_or_tensor,
)
from .linear_maps import parameters_of
from .message_arguments import collect
from .partitioned import partitioned_structure
from .withheld_bias import bias_to_add

_REDUCE = {
    SumAggregation: "sum",
    MeanAggregation: "mean",
    MaxAggregation: "max",
    MinAggregation: "min",
}
_STEPS = ("propagate", "edge_updater")
_METHODS = ("message", "aggregate", "update", "message_and_aggregate", "edge_update")

Size = tuple[int | None, int | None] | None


class FastLayer(MessagePassing):  # type: ignore[misc]
    """A layer whose aggregation runs on Peergraph where it can, and on PyG's code elsewhere.

    Mixed into a subclass of one of PyG's layers, before it; has no state of its own. Functions
    within `forward` name PyG's class where they call it: torch 2.4 cannot compile ``super`` there.
    """

    pyg_class: type[MessagePassing]

    def propagate(self, edge_index: Any, size: Size = None, **kwargs: Any) -> Tensor:
        """As PyG's; Peergraph does not write messages to memory."""

        def fused() -> Tensor:
            x, e = self._operands(kwargs)
            reduce = self._require_settings()
            csc = self._structure(edge_index, size, x, e)
            out = self._aggregate(csc, reduce, x.x_src, e)
            if is_explaining():
                note(f"propagate: peergraph, {reduce} over {csc}")
            return out

        result: Tensor = self._fused_or_fallback(
            fused,
            lambda: compat.interpreted("propagate")(self, edge_index, size, **kwargs),
            step="propagate",
        )
        return result

    def __init_subclass__(cls) -> None:
        """Keeps the methods that PyG restores when an explanation or a decomposition ends."""
        super().__init_subclass__()
        compat.set_class_methods(cls, cls.propagate is FastLayer.propagate)

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Keeps PyG from compiling another `propagate` from a template into the class."""

    def edge_updater(self, edge_index: Any, size: Size = None, **kwargs: Any) -> Tensor:
        """As PyG's; without it, a class would inherit the compiled method of another class."""
        result: Tensor = compat.interpreted("edge_updater")(self, edge_index, size, **kwargs)
        return result

    def __prepare_scriptable__(self) -> MessagePassing:
        """TorchScript compiles PyG's layer."""
        layer: MessagePassing = object.__new__(self.pyg_class)
        layer.__dict__ = dict(self.__dict__)
        compat.set_layer_class(layer, self.pyg_class)
        return layer

    def _collect(self, args: Any, edge_index: Any, size: Any, kwargs: Any) -> dict[str, Any]:
        """As the code that PyG compiles for its class."""
        return collect(self, super()._collect, args, edge_index, size, kwargs)

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        """Returns features of nodes and weights of edges from the arguments of `propagate`."""
        return ends_of(kwargs["x"]), None

    def _aggregate(self, csc: Structure, reduce: str, x: Tensor, e: Tensor | None) -> Tensor:
        if e is None:
            rows = table_rows_or_tensor(x, csc.num_edges)
            return without_autocast(lambda: csc.spmm("copy_u", reduce, rows))
        # PyG multiplies first, so the result has the wider dtype of the two.
        dtype = torch.promote_types(x.dtype, e.dtype)
        wide = rows_or_tensor(x if x.dtype == dtype else x.to(dtype), csc.num_edges)
        weight = e.to(dtype)
        return without_autocast(lambda: csc.spmm("mul", reduce, wide, weight))

    def _aggregate_and_project(
        self,
        x: Ends,
        edge_index: Any,
        size: Size,
        to_rows: Any,
        to_self: Any,
        *,
        adds_bias_last: bool = True,
    ) -> Tensor:
        """Returns ``to_rows(propagate(x)) + to_self(x of destinations)``; raises Unsupported.

        Args:
            x: features; the layer reduces them without weights of edges.
            edge_index, size: as for ``propagate``.
            to_rows, to_self: PyG's linear maps; the second has no bias.
            adds_bias_last: the bias is the layer's last step.
        """
        reduce = self._require_projection(x, edge_index)
        source, target = x
        weight, bias = parameters_of(to_rows, source)
        self_weight, self_bias = (None, None) if target is None else parameters_of(to_self, target)
        require(self_bias is None, "a map is the user's")
        csc = self._structure(edge_index, size, x, None, checks_features=False)
        out = layers.sage(
            csc,
            table_rows_or_tensor(source, csc.num_edges),
            weight,
            reduce=reduce,
            self_weight=self_weight,
            self_x=self_rows(x),
            bias=bias_to_add(self, bias) if adds_bias_last else bias,
        )
        if is_explaining():
            note(f"propagate: peergraph, {reduce} over {csc}")
        return out

    def _require_projection(self, x: Ends, edge_index: Any) -> str:
        """Returns the reduction; raises Unsupported unless sums and products can be one step."""
        reduce = self._require_settings()
        self._require_steps("propagate")
        if not isinstance(edge_index, Tensor):
            raise Unsupported(f"edge_index is a {kind_of(edge_index)}")
        for end in x.distinct:
            self._require_features(end, edge_index)
            require(end.ndim == 2, "x is no matrix")
        # Sums of plain tensors are rounded to autocast's dtype as they are written.
        plain = not is_partitioned(x.x_src) and not torch.compiler.is_compiling()
        casts = torch.is_autocast_enabled(x.x_src.device.type)
        require(not casts or (plain and reduce in ("sum", "mean")), "there is autocast")
        return reduce

    def _fused_or_fallback(
        self, fused: Callable[[], Any], fallback: Callable[[], Any], step: str | None = None
    ) -> Any:
        """Returns the result of `fused`, or of `fallback` where the call is not supported.

        Args:
            fused, fallback: compute the same.
            step: names the step in the log of ``explain``; None: the fallback's steps log
                themselves.
        """
        if torch.compiler.is_compiling() and not self._is_compiled(step):
            return fallback()
        try:
            return fused()
        except Unsupported as reason:
            if step is not None and not torch.compiler.is_compiling():
                note_fallback(self, f"{step}: PyG, {reason}")
        return fallback()

    def _is_compiled(self, step: str | None) -> bool:
        """Returns whether Peergraph runs the call in compiled code, if its settings allow it.

        Not for edges that PyG's code makes anew in each call: their structure would be made too.
        """
        return compat.compiles_layers() and (step not in _STEPS or not self._makes_edges())

    def _makes_edges(self) -> bool:
        """Returns whether PyG's ``forward`` passes other edges to the layer's steps."""
        return False

    def _require_settings(self, by_columns: bool = False) -> str:
        """Returns the reduction; raises Unsupported if the layer is set to do anything else.

        Args:
            by_columns: a column of the result depends on that column of the features alone, so
                ``decomposed_layers``, which has PyG aggregate a few columns at a time, makes no
                difference.
        """
        self._require_class()
        return self._require_own_settings(by_columns)

    @classmethod
    def _require_class(cls, *names: str) -> None:
        """Raises Unsupported for a mode of torch, or for methods that the user's class overrides.

        Args:
            names: further methods that a fused path skips.
        """
        if not torch.compiler.is_compiling():
            require(not compat.is_traced(), "the model is traced")
            # These differentiate by another mechanism than autograd.
            require(not compat.has_function_transform(), "there is a transform of torch.func")
            require(not compat.has_forward_mode(), "there is forward-mode autograd")
        pyg_class = cls.pyg_class
        for name in _METHODS:
            if getattr(cls, name) is not getattr(pyg_class, name):
                raise Unsupported(f"{name} is overridden")
        _require_steps(cls, cls, names)

    def _require_own_settings(self, by_columns: bool = False, steps: Collection[str] = ()) -> str:
        """As :meth:`_require_settings`, but checks only what layers of one class may differ in.

        Args:
            by_columns: as there.
            steps: further methods that the layer may not override.
        """
        # Without calls where there are other ways: layers of many relations come here one by one.
        if self.explain:
            raise Unsupported("the layer is being explained")
        if self.decomposed_layers != 1 and not by_columns:
            raise Unsupported("decomposed_layers is set")
        if self.flow != "source_to_target":
            raise Unsupported(f"flow is {self.flow}")
        hook = compat.step_hook(self)
        if hook is not None:
            raise Unsupported(f"there are hooks ({hook})")
        own = self.__dict__
        for name in (*_METHODS, *steps):
            if name in own:
                raise Unsupported(f"{name} is overridden")
        aggregation = self._modules["aggr_module"]
        reduce = _REDUCE.get(type(aggregation))
        if reduce is None:
            raise Unsupported(f"aggr is {self.aggr}")
        if compat.has_hooks(aggregation):
            raise Unsupported("there are hooks of the aggregation")
        return reduce

    def _require_steps(self, *names: str) -> None:
        """Raises Unsupported if the user overrode one of the methods that a fused path skips."""
        _require_steps(self, type(self), names)

    def _structure(
        self,
        edge_index: Any,
        size: Size,
        x: Ends,
        e: Tensor | None,
        *,
        checks_features: bool = True,
    ) -> Structure:
        """Returns the structure; raises Unsupported for input of another kind or a wrong one.

        Args:
            edge_index, size: as for ``propagate``.
            x, e: features of nodes, and weights of edges or None.
            checks_features: False: the caller has called :meth:`_require_features`.
        """
        if isinstance(edge_index, PartitionedEdgeIndex):
            require(edge_index.edge_weight is None, "edge_index is a matrix with values")
            if checks_features:
                for each in x.distinct:
                    self._require_features(each, edge_index)
            return partitioned_structure(edge_index, size, x, e)
        plain = type(edge_index) is Tensor and edge_index.layout == torch.strided
        if not plain and not isinstance(edge_index, EdgeIndex):
            raise Unsupported(f"edge_index is a {kind_of(edge_index)}")
        dtype, shape = edge_index.dtype, edge_index.shape
        if dtype not in (torch.int32, torch.int64) or len(shape) != 2 or shape[0] != 2:
            raise Unsupported(f"edge_index is {dtype}, {list(shape)}")
        sizes = list(size or (None, None))
        if isinstance(edge_index, EdgeIndex):
            sizes = list(edge_index.sparse_size())
        for end, features in enumerate(x):
            if features is None:
                continue
            if checks_features:
                self._require_features(features, edge_index)
            rows = features.shape[0]
            # torch.compile would fix the numbers in a message that is made in every call.
            if sizes[end] is not None and sizes[end] != rows:
                raise Unsupported(f"{rows} rows for size {sizes[end]}")
            sizes[end] = rows
        if e is not None:
            is_supported = (
                is_plain(e) and e.dtype in FEATURE_DTYPES and e.device == edge_index.device
            )
            require(is_supported, f"edge weights are {kind_of(e)}")
            if e.dim() == 0 or e.shape[0] != edge_index.shape[1]:
                raise Unsupported(f"edge weights are {list(e.shape)}")
        sources = sizes[0]
        assert sources is not None
        destinations = sources if sizes[1] is None else sizes[1]
        if torch.compiler.is_compiling():
            require(plain, f"edge_index is a {kind_of(edge_index)}")
            return TracedStructure(FINDER, edge_index, destinations, sources)
        return csc_of(edge_index, destinations, sources)

    def _require_features(self, x: Tensor, edge_index: Tensor) -> None:
        if isinstance(edge_index, PartitionedEdgeIndex):
            is_supported = is_partitioned(x)
        else:
            is_supported = is_plain(x) or type(x) is LazyRows
        if not is_supported:
            raise Unsupported(f"x is a {kind_of(x)}")
        if x.dtype not in FEATURE_DTYPES:
            raise Unsupported(f"x is {x.dtype}")
        dims = x.ndim
        if dims < 2 or self.node_dim not in (0, -dims):
            raise Unsupported(f"x is {list(x.shape)}")
        if x.device != edge_index.device or not (x.is_cpu or supports(x.device)):
            raise Unsupported(f"x is on {x.device}")


def _require_steps(owner: Any, cls: type, names: Iterable[str]) -> None:
    """Raises Unsupported for methods of a layer, or of its class, that are not those of a fused
    layer.
    """
    fused = next(each for each in cls.__mro__ if "pyg_class" in vars(each))
    for name in names:
        code = getattr(getattr(owner, name), "__code__", None)
        if code is not getattr(fused, name).__code__:
            raise Unsupported(f"{name} is overridden")
