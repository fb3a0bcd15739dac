"""What the layers have in common: which calls take Peergraph's path, and what it does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

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

from peergraph.aggregate import Csc, g_spmm, supports
from peergraph.integration import Unsupported, note
from peergraph.memory import TableRows

from .. import compat
from ..data.lazy_features import LazyRows, rows_or_tensor
from .collecting import collect
from .structure import derived_from, structure_of

_REDUCE = {
    SumAggregation: "sum",
    MeanAggregation: "mean",
    MaxAggregation: "max",
    MinAggregation: "min",
}
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_METHODS = ("message", "aggregate", "update", "message_and_aggregate", "edge_update")

Size = tuple[int | None, int | None] | None


class Ends(NamedTuple):
    """Features at the ends of edges; `x_dst` is None where there are none."""

    x_src: Tensor
    x_dst: Tensor | None


class FastLayer(MessagePassing):  # type: ignore[misc]
    """A layer whose aggregation runs on Peergraph where it can, and on PyG's code elsewhere.

    Mixed into a subclass of one of PyG's layers, before it; has no state of its own. Functions
    within `forward` name PyG's class where they call it: torch 2.4 cannot compile ``super`` there.
    """

    pyg_class: type[MessagePassing]

    def propagate(self, edge_index: Any, size: Size = None, **kwargs: Any) -> Tensor:
        """As PyG's; messages of the fast path are never written to memory."""

        def fast() -> Tensor:
            x, e = self._operands(kwargs)
            reduce = self._check_settings()
            csc = self._structure(edge_index, size, x, e)
            out = self._aggregate(csc, reduce, x.x_src, e)
            note(f"propagate: peergraph, {reduce} over {csc}")
            return out

        return self._either(
            "propagate", fast, lambda: MessagePassing.propagate(self, edge_index, size, **kwargs)
        )

    def __init_subclass__(cls) -> None:
        """Keeps what PyG keeps in the class of a layer, to go back to when an explanation or a
        decomposition ends: its methods as they are, and as compiled, told apart by their modules.
        """
        super().__init_subclass__()
        compat.set_class_methods(cls, cls.propagate is FastLayer.propagate)

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Does not let PyG compile another `propagate` from a template and put it in the class."""

    def edge_updater(self, edge_index: Any, size: Size = None, **kwargs: Any) -> Tensor:
        """As PyG's, from which templates of other classes would be inherited."""
        result: Tensor = MessagePassing.edge_updater(self, edge_index, size, **kwargs)
        return result

    def __prepare_scriptable__(self) -> MessagePassing:
        """TorchScript compiles PyG's layer."""
        layer: MessagePassing = object.__new__(self.pyg_class)
        layer.__dict__ = dict(self.__dict__)
        compat.set_layer_class(layer, self.pyg_class)
        return layer

    def _collect(self, args: Any, edge_index: Any, size: Any, kwargs: Any) -> dict[str, Any]:
        """As the code does that PyG compiles for its class."""
        return collect(self, super()._collect, args, edge_index, size, kwargs)

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        """Features of nodes and weights of edges among the arguments of `propagate`."""
        return ends_of(kwargs["x"]), None

    def _aggregate(self, csc: Csc, reduce: str, x: Tensor, e: Tensor | None) -> Tensor:
        if e is None:
            rows = rows_or_tensor(x, csc.num_edges)
            if isinstance(rows, TableRows):
                note("features: read from the table, not gathered")
            return without_autocast(lambda: g_spmm(csc, "copy_u", reduce, rows))
        # PyG multiplies first, so the result has the wider dtype of the two.
        dtype = torch.promote_types(x.dtype, e.dtype)
        wide = rows_or_tensor(x if x.dtype == dtype else x.to(dtype), csc.num_edges)
        weight = e.to(dtype)
        return without_autocast(lambda: g_spmm(csc, "mul", reduce, wide, weight))

    def _either(self, step: str, fast: Callable[[], Tensor], pyg: Callable[[], Tensor]) -> Tensor:
        if torch.compiler.is_compiling():
            return pyg()
        try:
            return fast()
        except Unsupported as refusal:
            note(f"{step}: PyG, {refusal}")
        return pyg()

    def _at_once(self, fast: Callable[[], Tensor], in_steps: Callable[[], Any]) -> Any:
        """`fast`, or the steps of PyG's `forward`, which choose their path and say so each."""
        if torch.compiler.is_compiling():
            return in_steps()
        try:
            return fast()
        except Unsupported:
            pass
        return in_steps()

    def _check_settings(self, by_columns: bool = False) -> str:
        """The reduction. Raises Unsupported if the layer is set to do anything else.

        `by_columns`: a result's column depends on that column of the features alone, so working off
        a few columns at a time (decomposed_layers), which saves PyG memory, makes no difference.
        """
        refuse(compat.is_traced(), "the model is traced")
        # Derivatives of these are another mechanism than autograd's.
        refuse(compat.has_function_transform(), "there is a transform of torch.func")
        refuse(compat.has_forward_mode(), "there is forward-mode autograd")
        refuse(bool(self.explain), "the layer is being explained")
        refuse(self.decomposed_layers != 1 and not by_columns, "decomposed_layers is set")
        refuse(self.flow != "source_to_target", f"flow is {self.flow}")
        hook = compat.step_hook(self)
        refuse(hook is not None, f"there are hooks ({hook})")
        for name in _METHODS:
            own = name in self.__dict__
            changed = getattr(type(self), name) is not getattr(self.pyg_class, name)
            refuse(own or changed, f"{name} is overridden")
        aggregation = self.aggr_module
        reduce = _REDUCE.get(type(aggregation))
        if reduce is None:
            raise Unsupported(f"aggr is {self.aggr}")
        refuse(compat.has_hooks(aggregation), "there are hooks of the aggregation")
        return reduce

    def _check_steps(self, *names: str) -> None:
        """Raises Unsupported if users wrote methods that are about to be left out."""
        own = next(cls for cls in type(self).__mro__ if "pyg_class" in vars(cls))
        for name in names:
            code = getattr(getattr(self, name), "__code__", None)
            refuse(code is not getattr(own, name).__code__, f"{name} is overridden")

    def _structure(self, edge_index: Any, size: Size, x: Ends, e: Tensor | None) -> Csc:
        """The structure. Raises Unsupported for inputs of other kinds, and for wrong ones."""
        plain = type(edge_index) is Tensor and edge_index.layout == torch.strided
        if not plain and not isinstance(edge_index, EdgeIndex):
            raise Unsupported(f"edge_index is a {kind_of(edge_index)}")
        refuse(
            edge_index.dtype not in (torch.int32, torch.int64)
            or edge_index.dim() != 2
            or edge_index.shape[0] != 2,
            f"edge_index is {edge_index.dtype}, {list(edge_index.shape)}",
        )
        sizes = list(size or (None, None))
        if isinstance(edge_index, EdgeIndex):
            sizes = list(edge_index.sparse_size())
        for end, features in enumerate(x):
            if features is None:
                continue
            self._check_features(features, edge_index)
            rows = features.shape[0]
            refuse(sizes[end] not in (None, rows), f"{rows} rows for size {sizes[end]}")
            sizes[end] = rows
        if e is not None:
            known = is_plain(e) and e.dtype in _FLOATS and e.device == edge_index.device
            refuse(not known, f"edge weights are {kind_of(e)}")
            refuse(e.shape[:1] != edge_index.shape[1:], f"edge weights are {list(e.shape)}")
        sources = sizes[0]
        assert sources is not None
        return structure_of(edge_index, sources if sizes[1] is None else sizes[1], sources)

    def _check_features(self, x: Tensor, edge_index: Tensor) -> None:
        refuse(not is_plain(x) and type(x) is not LazyRows, f"x is a {kind_of(x)}")
        refuse(x.dtype not in _FLOATS, f"x is {x.dtype}")
        refuse(x.dim() < 2 or self.node_dim not in (0, -x.dim()), f"x is {list(x.shape)}")
        refuse(x.device != edge_index.device or not supports(x.device), f"x is on {x.device}")


def ends_of(x: Any) -> Ends:
    """Features of sources and destinations, of a pair or of one tensor of sources."""
    pair = tuple(x) if isinstance(x, (tuple, list)) else (x, None)
    refuse(len(pair) != 2 or pair[0] is None, f"x is {kind_of(x)}")
    return Ends(*pair)


def is_plain(value: Any) -> bool:
    """Whether nothing but torch's own kernels knows what `value` holds."""
    return type(value) in (Tensor, torch.nn.Parameter) and value.layout == torch.strided


def can_be_kept(*tensors: Any) -> bool:
    """Whether structures made from the tensors can be remembered, which no compiler may see."""
    return not torch.compiler.is_compiling() and all(map(is_plain, tensors))


def known_by(edge_index: Any, how: str, changes: bool) -> AbstractContextManager[None]:
    """For PyG's code: the edge index that it makes of this one, if it `changes` it, is known by it
    (:func:`derived_from`), where it can be kept."""
    if changes and can_be_kept(edge_index):
        return derived_from(how, edge_index)
    return nullcontext()


def kind_of(value: Any) -> str:
    """The type of a value in words."""
    if type(value) is Tensor:
        return f"{value.dtype} {value.layout} tensor".replace("torch.", "")
    return type(value).__name__


def without_autocast(run: Callable[[], Tensor]) -> Tensor:
    """Runs it as PyG's gathers and scatters run, which autocast leaves in the dtype they are in."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    for kind in kinds:
        with torch.autocast(kind, enabled=False):
            return without_autocast(run)
    return run()


def refuse(condition: bool, why: str) -> None:
    """Leaves the step to PyG."""
    if condition:
        raise Unsupported(why)
