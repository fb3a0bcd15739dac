"""A tensor with the rows of all ranks, of which each rank holds some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.arguments import (
    PlainRowsError,
    SplitRowsError,
    local_rows_of_plain,
    not_implemented,
    of_rule,
    writes_first,
)
from peergraph.fullgraph.tensor.parameters import check_parameters
from peergraph.fullgraph.tensor.registry import (
    FUNCTION_RULES,
    METHODS,
    RULES,
    Rule,
    find_rule,
)
from peergraph.fullgraph.tensor.result_strides import (
    returns_views,
    strides_in_torch,
    strides_of_all,
)
from peergraph.fullgraph.tensor.row_copies import as_view, changes_of, follow_change
from peergraph.fullgraph.tensor.row_tensor import RowTensor
from peergraph.fullgraph.tensor.transforms import check_transforms
from peergraph.fullgraph.tensor.uncompiled import Uncompiled
from peergraph.without_memory import make_without_memory

_DisableTorchFunction = torch._C.DisableTorchFunctionSubclass


def _direct_attribute(name: str) -> Any:
    """An attribute of tensors that is read without :meth:`PartitionedTensor.__torch_function__`.

    It takes a fifth of the time.
    """
    attribute = getattr(Tensor, name)
    read: Any = attribute.__get__
    write: Any = getattr(attribute, "__set__", None)

    def get(self: Tensor) -> Any:
        with _DisableTorchFunction():
            return read(self)

    def set_(self: Tensor, value: Any) -> None:
        with _DisableTorchFunction():
            write(self, value)

    return property(get, set_ if write is not None else None)


class PartitionedTensor(Uncompiled):
    """A global tensor of which each rank holds the rows that a layout gives it.

    The shape is the global one and rows are numbered as the user numbers them, so scripts for one
    process run unchanged on every rank. Operations compute on local rows; an operation that
    contracts the partitioned dimension adds up over the ranks (it is collective) and returns a
    plain tensor, equal on all ranks. Plain tensors are taken as equal on all ranks. An operation
    without a rule raises NotImplementedError; none gathers rows silently.

    Made with :func:`from_local` and :func:`distribute`.
    """

    __slots__ = ("_local", "_with_history", "partitioned_dim", "row_layout")

    _local: Tensor
    """This rank's rows, without autograd's history."""
    _with_history: Tensor | None
    """The same rows with autograd's history, for results that no user sees; else None."""
    row_layout: RowLayout
    """Which rank holds which rows."""
    partitioned_dim: int
    """The dimension along which rows are partitioned."""
    is_offloaded = False
    """Whether the rows are not all on the device: see :class:`OffloadedTensor`."""

    shape = _direct_attribute("shape")
    dtype = _direct_attribute("dtype")
    device = _direct_attribute("device")
    ndim = _direct_attribute("ndim")
    is_cuda = _direct_attribute("is_cuda")
    is_leaf = _direct_attribute("is_leaf")
    requires_grad = _direct_attribute("requires_grad")
    _version = _direct_attribute("_version")

    def to_local(self) -> Tensor:
        """Returns this rank's rows as a plain tensor. Differentiable; not collective.

        Row i is the user's row `layout.positions[i]`. Plain tensors that enter local computations
        and need gradients must pass through :func:`replicated`.
        """
        if torch.is_grad_enabled() and self.requires_grad:
            if self._with_history is not None:
                return self._with_history
            local: Tensor = METHODS["to_local"](self)
            return local
        return self._local

    def with_rows(
        self, local: Tensor, dim: int | None = None, layout: RowLayout | None = None
    ) -> PartitionedTensor:
        """Returns a tensor of other local rows, without autograd's history, as :func:`wrap`.

        Rules that make their results so also compute on the rows of a chunk
        (:class:`peergraph.fullgraph.tensor.chunk_rows.ChunkRows`).
        """
        dim = self.partitioned_dim if dim is None else dim
        return wrap(local, self.row_layout if layout is None else layout, dim)

    def change_token(self) -> Callable[[], object]:
        """Returns what returns equal values as long as the rows are not changed in place."""
        changes = changes_of(self._local)
        return lambda: changes[0]

    def full_tensor(self) -> Tensor:
        """Returns all rows in the user's order as a plain tensor. Differentiable; collective."""
        rows: Tensor = METHODS["full_tensor"](self)
        return rows

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Returns all rows, as `torch.save` and pickle write a plain tensor. Collective."""
        return METHODS["reduce_ex"](self, protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        with _DisableTorchFunction():
            gradient = ", requires_grad=True" if self.requires_grad else ""
            return (
                f"PartitionedTensor(shape={tuple(self.shape)}, "
                f"partitioned_dim={self.partitioned_dim}, layout={self.row_layout}, "
                f"local={self._local}{gradient})"
            )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        check_transforms()
        if len(types) > 1 and RowTensor in types:
            return RowTensor.__torch_function__(func, types, args, kwargs)
        check_parameters((*args, *kwargs.values()) if kwargs else args)
        rule = FUNCTION_RULES.get(func)
        try:
            if rule is not None:
                return rule(*args, **of_rule(func, kwargs)) if kwargs else rule(*args)
            with _DisableTorchFunction():
                return func(*args, **kwargs) if kwargs else func(*args)
        except (PlainRowsError, SplitRowsError) as error:
            entered = METHODS[error.again](error, args, kwargs or {})
            if writes_first(func) and entered[0][0] is not args[0]:
                raise  # what is written into rows of a plain tensor would be lost
        except RuntimeError as error:
            if "not allocated yet" not in str(error):
                raise
            not_implemented(func.__name__, "torch reads the memory of all rows")
        return func(*entered[0], **entered[1])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        rule = _DISPATCHED.get(func) or _dispatched(func)
        result = rule(*args, **kwargs) if kwargs else rule(*args)
        if type(result) is PartitionedTensor:
            if result.row_layout.local_count > 1:
                return result
            return _with_strides(func, args, kwargs or {}, [result])[0]
        if type(result) in (tuple, list) and any(type(p) is PartitionedTensor for p in result):
            return type(result)(_with_strides(func, args, kwargs or {}, result))
        return result


def _with_strides(func: OpOverload, args: Any, kwargs: Any, results: Sequence[Any]) -> Any:
    """Returns results of a rule with the strides that torch gives them.

    Changes nothing if all tensors are contiguous, or if this rank has several rows, whose strides
    are right already.
    """
    layout = next(part.row_layout for part in results if type(part) is PartitionedTensor)
    if layout.local_count > 1 or func._schema.is_mutable:
        return results
    if all(map(_is_contiguous, (*results, *args, *kwargs.values()))):
        return results
    strides = strides_in_torch(func, args, kwargs, results)
    return results if strides is None else list(map(_with_stride, results, strides, repeat(func)))


def _is_contiguous(value: Any) -> bool:
    if type(value) in (tuple, list):
        return all(map(_is_contiguous, value))
    return not isinstance(value, Tensor) or value.layout != torch.strided or value.is_contiguous()


def _with_stride(result: Any, strides: Sequence[int], func: OpOverload) -> Any:
    """Returns a result with these strides. It has at most one local row."""
    if type(result) is not PartitionedTensor or tuple(strides) == result.stride():
        return result
    local = result._local
    if not returns_views(func):
        local = as_view(local, local.shape, result.shape, strides)
    return wrap(local, result.row_layout, result.partitioned_dim, strides)


_DISPATCHED: dict[OpOverload, Rule] = {}


def _dispatched(overload: OpOverload) -> Rule:
    """Returns the rule of an overload; one that writes also tells the memory that it was changed.

    Ranges of rows follow the tensor that they are of: see :mod:`row_copies`.
    """
    rule = RULES.get(overload) or find_rule(overload)
    if "_backward" in overload._schema.name:
        rule = _taking_all_rows(overload, rule)
    arguments = overload._schema.arguments
    places = [place for place, argument in enumerate(arguments) if is_written(argument)]
    names = [argument.name for argument in arguments if is_written(argument)]
    if not places:
        _DISPATCHED[overload] = rule
        return rule

    def run(*args: Any, **kwargs: Any) -> Any:
        result = rule(*args, **kwargs)
        written = [args[place] for place in places if place < len(args)]
        written += [kwargs[name] for name in names if name in kwargs]
        for target in written:
            for tensor in target if isinstance(target, (list, tuple)) else (target,):
                if type(tensor) is PartitionedTensor:
                    follow_change(tensor._local)
        return result

    _DISPATCHED[overload] = run
    return run


def _taking_all_rows(overload: OpOverload, rule: Rule) -> Rule:
    """Returns a rule of a gradient that takes plain tensors of all rows, too.

    Hooks on saved tensors make them: such as write them to files.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        rows = next((part for part in args if type(part) is PartitionedTensor), None)
        if rows is not None and any(type(part) is Tensor for part in args):
            dim, layout = rows.partitioned_dim, rows.row_layout
            args = tuple(
                wrap(local_rows_of_plain(overload, part, layout, dim), layout, dim)
                if type(part) is Tensor
                and part.ndim == rows.ndim
                and part.shape[dim] == layout.size
                else part
                for part in args
            )
        return rule(*args, **kwargs)

    return run


def run_as_is(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs a function of torch without its rule, of rows wherever they are.

    On the device, its ATen operations have rules; with an offloaded tensor it is recorded.
    """
    for arg in args:
        if isinstance(arg, PartitionedTensor) and arg.is_offloaded:
            return METHODS["record"](function, args, kwargs)
    with _DisableTorchFunction():
        return function(*args, **kwargs)


def is_written(argument: Any) -> bool:
    """Returns whether an operation changes this argument of its schema."""
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def wrap(
    local: Tensor, layout: RowLayout, dim: int, strides: Sequence[int] | None = None
) -> PartitionedTensor:
    """Returns a partitioned tensor of these local rows, without autograd's history.

    Args:
        local: this rank's rows: `layout.local_count` along `dim`; not copied.
        dim: not negative.
        strides: of a tensor of all rows; None: as the rows lie in memory.
    """
    if local._is_zerotensor():  # of derivatives that are zero; its memory does not exist
        local = torch.zeros(local.shape, dtype=local.dtype, device=local.device)
    shape = local.shape
    size = (*shape[:dim], layout.size, *shape[dim + 1 :]) if dim else (layout.size, *shape[1:])
    # Of one row or none, any strides are contiguous; ranks must not differ in theirs.
    is_contiguous = layout.local_count > 1 and local.is_contiguous()
    if strides is None and not is_contiguous:
        strides = strides_of_all(local, layout.size, dim)
    result: PartitionedTensor
    if torch.is_inference_mode_enabled() and not local.is_inference():
        # A view in inference mode of a tensor that was made outside is a normal tensor.
        with torch.inference_mode(False):
            result = make_without_memory(
                PartitionedTensor, size, strides=strides, dtype=local.dtype, device=local.device
            )
    else:
        result = make_without_memory(
            PartitionedTensor, size, strides=strides, dtype=local.dtype, device=local.device
        )
    result._local = local
    result._with_history = None
    result.row_layout = layout
    result.partitioned_dim = dim
    return result


def apply_to_rows(function: type[torch.autograd.Function], *args: Any) -> Any:
    """Applies a function that saves partitioned tensors.

    Hooks on saved tensors, such as ``save_on_cpu``, then get the rank's rows, as they do of torch's
    own functions: ``tensor.cpu()`` moves them and gathers none of other ranks.
    """
    with _DisableTorchFunction():
        return function.apply(*args)  # type: ignore[no-untyped-call]
