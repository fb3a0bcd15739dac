"""`TailedRows`: rows of which the last ones are not in memory until somebody reads them.

A typed layer writes the rows of nodes that have edges. In a mini-batch most nodes have none, those
that the last hop added: their rows are the layer's bias, or a product of their own features, and
the next layer drops them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from typing_extensions import Self

from peergraph.aggregate.layers import TypedResult
from peergraph.memory import ContentCheck
from peergraph.store import StoragelessTensor

from ..compat import has_function_transform

# Last rows that take fewer bytes than this are written to memory.
_FEWEST_BYTES = 64 << 20

_OF_EACH_ROW = {
    *(F.elu, F.gelu, F.layer_norm, F.leaky_relu, F.linear, F.relu, F.selu, F.silu),
    *(torch.relu, torch.sigmoid, torch.tanh, Tensor.relu, Tensor.sigmoid, Tensor.tanh),
    *(Tensor.to, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16),
}
"""Functions of which a row of the result depends on that row of the first argument alone."""

_ATTRIBUTES = {
    *("shape", "dtype", "device", "layout", "ndim", "is_cuda", "is_cpu", "is_sparse", "is_meta"),
    *("requires_grad", "is_leaf", "grad_fn", "is_nested", "is_quantized", "itemsize", "nbytes"),
}
_QUESTIONS = {
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__, Tensor.is_floating_point),
    *(Tensor.is_complex, Tensor.is_inference, Tensor.get_device, Tensor.is_contiguous),
}

_NO_VALUES = (
    "a function of autograd gets rows of a typed layer that are not in memory, that dropout has "
    "drawn or that were written to; pass x.clone()"
)
_CHANGED = (
    "rows of a typed layer are read for nodes that have no edges, but features have been written "
    "to since the layer ran: read all rows (x.clone()) before"
)

Rows = Callable[[Tensor], Tensor]
Append = Callable[[TypedResult, int, int], Tensor]
"""Returns the rows of a result, followed by those in a range."""


class _Origin(NamedTuple):
    """A layer's result, from which all rows can be computed: see :meth:`TailedRows.materialize`."""

    result: TypedResult
    """Its first rows are those before all steps."""
    version: int
    """The version counter of these rows when the layer had computed them."""


class TailedRows(StoragelessTensor):
    """A tensor ``[rows, columns]`` whose last rows are equal and stored once, or computed if read.

    Leading rows, ``x[:n]`` or ``x.narrow(0, 0, n)``, that are in memory are a plain tensor, a view.
    Functions of each row (activations, ``F.linear``, ``F.layer_norm``, ``F.dropout``, conversions)
    give tensors of the same kind; dropout draws other elements than torch's with the same seed. All
    other functions get all rows, which are made once: writes to them are writes to the tensor.
    A write through leading rows that were taken before, or a write to all rows after leading rows
    were taken, raises ``NotImplementedError``, since the two do not share memory.
    """

    _first: Tensor
    _count: int
    """The number of rows: to ask for the shape takes as long as a launch."""
    _last: Tensor | None
    """The row that follows all first rows; None: `_append` computes the rows."""
    _append: Append | None
    _origin: _Origin | None
    _steps: tuple[Rows, ...]
    _whole: Tensor | None
    _lent: bool
    """Whether callers hold tensors of some of the rows, which later writes here would not reach."""
    _versions: tuple[int, int]
    """The version counters of the first rows and of all rows, when all rows were made."""

    @classmethod
    def of(cls, first: Tensor, last: Tensor, count: int) -> Tensor:
        """Returns `first`, followed by `last` as often as it takes to have `count` rows.

        Args:
            first: [n, columns].
            last: [columns], of the same dtype and device.
            count: at least n.

        Returns:
            A plain tensor where the rows that follow are few, or take little memory.
        """
        tail = count - len(first)
        if _pays_to_write(first, tail):
            return torch.cat([first, last.expand(tail, -1)]) if tail else first
        return cls._wrap(first, last.unsqueeze(0), None, None, (), count)

    @classmethod
    def of_computed(
        cls,
        result: TypedResult,
        append_of: Callable[[Sequence[Tensor]], Append],
        x: Tensor,
        parameters: Callable[[], Sequence[Tensor]],
    ) -> Tensor:
        """Returns the first rows, followed by rows that are computed where somebody reads them.

        Args:
            result: has the first rows, [n, columns].
            append_of: takes the parameters and returns a function that returns rows, followed by
                those in a range, of the same dtype and device.
            x: features of all rows, at least n, of which the function reads those of the range.
            parameters: computes what else the function reads, as it is now: optimizers may write
                to weights before somebody reads the rows.

        Returns:
            As :meth:`of`.

        A later read raises NotImplementedError if `x` has been written to, or on a GPU, where torch
        did not count the write, RuntimeError later.
        """
        first, rows, count = result.first, result.first.shape[0], x.shape[0]
        if count == rows:
            return first
        if _pays_to_write(first, count - rows):
            return append_of(parameters())(result, rows, count)
        records, is_unchanged = torch.is_grad_enabled(), _watch(x, rows)
        with torch.inference_mode(False), torch.set_grad_enabled(records):
            append = append_of([parameter.clone() for parameter in parameters()])

        def checked(before: TypedResult, begin: int, end: int) -> Tensor:
            if not is_unchanged():
                raise NotImplementedError(_CHANGED)
            with torch.set_grad_enabled(records):
                return append(before, begin, end)

        return cls._wrap(first, None, checked, _Origin(result, _version_of(first)), (), count)

    @classmethod
    def _wrap(
        cls,
        first: Tensor,
        last: Tensor | None,
        append: Append | None,
        origin: _Origin | None,
        steps: tuple[Rows, ...],
        count: int,
    ) -> Tensor:
        # torch's Python code around the call takes as long as the call, for transforms of
        # torch.func alone.
        plain = not has_function_transform()
        base: Any = super(torch.autograd.Function, _TailedRowsOf) if plain else _TailedRowsOf
        rows: TailedRows = base.apply(first, last, append, steps, count)
        # Those of the function have no gradients.
        rows._first, rows._last, rows._origin = first, last, origin
        rows._versions = _version_of(first), 0
        return rows

    @classmethod
    def make(
        cls,
        first: Tensor,
        last: Tensor | None,
        append: Append | None,
        steps: tuple[Rows, ...],
        count: int,
    ) -> Self:
        """Returns rows without a gradient."""
        rows = cls._make((count, *first.shape[1:]), first.dtype, first.device)
        rows._first, rows._last, rows._append, rows._steps = first, last, append, steps
        rows._count = count
        rows._whole, rows._lent, rows._origin = None, False, None
        return rows

    def with_first(
        self,
        first: Tensor,
        step: Rows | None = None,
        *,
        last: Tensor | None = None,
        count: int = -1,
        draws: bool = False,
    ) -> Tensor:
        """Returns rows with other first rows.

        Args:
            first: the first rows.
            step: what was done to them, and is to be done to the last rows; None: nothing, or it
                has been done to `last`.
            last: the row that follows; None: as here.
            count: the number of rows; -1: as here.
            draws: whether the step would give other values if it were done again.
        """
        steps = self._steps if step is None else (*self._steps, step)
        rows = self._count if count < 0 else count
        last = self._last if last is None else last
        # A step that is repeated must read the rows that it has read before.
        unwritten = step is None or _version_of(self._first) == self._versions[0]
        origin = self._origin if unwritten and not draws else None
        return self._wrap(first, last, self._append, origin, steps, rows)

    def _all_rows(self) -> Tensor:
        """Returns all rows as a plain tensor."""
        begin, end = self._first.shape[0], self._count
        origin, append = self._origin, self._append
        if append is None:
            assert self._last is not None
            rows = self._last.expand(end - begin, -1)
        elif origin is not None and self._is_unwritten(origin):
            # All rows at once: steps and their gradients take the memory of one tensor.
            rows = append(origin.result, begin, end)
        else:
            origin = None
            rows = append(TypedResult(self._first[:0]), begin, end)
        for step in self._steps:
            rows = step(rows)
        return rows if origin is not None else torch.cat([self._first, rows])

    def _is_unwritten(self, origin: _Origin) -> bool:
        """Returns whether nobody has written to the first rows, before or after the steps."""
        same = _version_of(self._first) == self._versions[0]
        return same and _version_of(origin.result.first) == origin.version

    def materialize(self) -> Tensor:
        """Returns all rows as a plain tensor; later functions use it."""
        if self._whole is None:
            # Recorded by autograd even if the caller needs no gradient: later functions may.
            with (
                torch._C.DisableTorchFunctionSubclass(),
                torch.inference_mode(False),
                torch.enable_grad(),
            ):
                self._whole = self._all_rows()
                self._origin = None
            self._versions = self._current_versions()
        return self._whole

    def _current_versions(self) -> tuple[int, int]:
        return _version_of(self._first), 0 if self._whole is None else _version_of(self._whole)

    def _check_views(self) -> None:
        """Raises NotImplementedError if a write did not reach leading rows, or all rows."""
        if not self._lent or self._whole is None:
            return
        if self._current_versions() != self._versions:
            raise NotImplementedError(
                "rows of a typed layer were written to, of which leading rows (x[:n]) had been "
                "taken: write to x.clone()"
            )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        getter = getattr(func, "__self__", None)
        if func in _QUESTIONS or getattr(getter, "__name__", None) in _ATTRIBUTES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        rows = args[0] if args else None
        if type(rows) is cls and rows._whole is None:
            result = _of_rows(rows, func, args[1:], kwargs)
            if result is not None:
                return result
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, TailedRows)]
        args, kwargs = tree_map_only(TailedRows, TailedRows.materialize, (args, kwargs))
        for tensor in tensors:
            tensor._check_views()
        result = func(*args, **kwargs)
        for tensor in tensors:
            tensor._check_views()
        return result

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        # Functions of C++ and of autograd do not call __torch_function__.
        args, kwargs = tree_map_only(TailedRows, TailedRows._values, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _values(self) -> Tensor:
        if self._steps or self._whole is not None or self._append is not None:
            raise NotImplementedError(_NO_VALUES)
        return self._all_rows()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"TailedRows({list(self.shape)}, {self.dtype}, {len(self._first)} rows in memory)"

    def reduce_to_process(self) -> Any:
        """Pickles the values as a plain tensor in memory that both processes map."""
        return reduce_tensor(self.materialize())  # type: ignore[no-untyped-call]


def whole_rows(x: Any) -> Any:
    """Returns `x`, as a plain tensor if it is :class:`TailedRows`."""
    return x.materialize() if isinstance(x, TailedRows) else x


class _TailedRowsOf(torch.autograd.Function):
    """Makes autograd know the rows that are in memory, for who looks at gradients of all rows."""

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        last: Tensor | None,
        append: Append | None,
        steps: tuple[Rows, ...],
        count: int,
    ) -> TailedRows:
        ctx.set_materialize_grads(False)
        ctx.count, ctx.has_values = first.shape[0], not steps and append is None
        return TailedRows.make(first, last, append, steps, count)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 5
        if not ctx.has_values:
            raise NotImplementedError(_NO_VALUES)
        return grad[: ctx.count], grad[ctx.count :].sum(0, keepdim=True), None, None, None


def _pays_to_write(first: Tensor, count: int) -> bool:
    """Returns whether `count` rows that follow the first rows are written to memory at once."""
    row_bytes = first.shape[1:].numel() * first.element_size()
    return count <= first.shape[0] or count * row_bytes < _FEWEST_BYTES


def _watch(x: Tensor, begin: int) -> Callable[[], bool]:
    """Returns a function that tells whether the rows from `begin` on are what they are now, as far
    as the host knows.
    """
    version = _version_of(x)
    if isinstance(x, StoragelessTensor):
        return lambda: _version_of(x) == version
    # Writes through NumPy or `.data` do not raise the version counter.
    with torch.inference_mode(False):
        rows = x.detach()[begin:].reshape(-1)
    check = ContentCheck([rows])
    return lambda: _version_of(x) == version and check.is_unchanged([rows])


def _version_of(tensor: Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # Tensors of inference mode count no writes.
        return 0


def _of_rows(rows: TailedRows, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor | None:
    """Returns the result of a function that needs no rows but those in memory, or None."""
    first, count = rows._first, rows._count
    leading = _leading_rows(func, args, kwargs, count)
    if leading is not None:
        if leading <= first.shape[0]:
            rows._lent = True
            # The gradient of a slice is copied; that of a view of all rows is not.
            whole = leading == first.shape[0]
            return first.view_as(first) if whole else first.narrow(0, 0, leading)
        part = rows.with_first(first, count=leading)
        assert isinstance(part, TailedRows)
        rows._lent = part._lent = True
        return part
    if func is F.layer_norm and len(kwargs.get("normalized_shape", args[0] if args else ())) != 1:
        return None  # over all rows
    if func is F.dropout:
        named = dict(zip(("p", "training", "inplace"), args, strict=False)) | kwargs
        p, training = named.get("p", 0.5), named.get("training", True)
        if named.get("inplace", False):
            return None
        if not training or p == 0:
            return rows  # as torch does

        def step(tail: Tensor) -> Tensor:
            return F.dropout(tail, p)

        return rows.with_first(step(first), step, draws=True)
    if func not in _OF_EACH_ROW or "out" in kwargs:
        return None
    is_written = len(args) > 1 and any(each is True for each in args[1:])
    if is_written or kwargs.get("inplace", False):
        return None
    if TailedRows in map(type, (*args, *kwargs.values())):
        return None

    def apply(values: Tensor) -> Tensor:
        result: Tensor = func(values, *args, **kwargs)
        return result

    result = apply(first)
    if result is first:  # a conversion to what it is
        return rows
    if rows._steps or rows._last is None:
        return rows.with_first(result, apply)
    return rows.with_first(result, last=apply(rows._last))


def _leading_rows(func: Any, args: Any, kwargs: dict[str, Any], count: int) -> int | None:
    """Returns n if a function takes the first n rows; None for other functions."""
    if func in (Tensor.narrow, torch.narrow):
        named = dict(zip(("dim", "start", "length"), args, strict=False)) | kwargs
        plain = named.get("dim") in (0, -2) and named.get("start") == 0
        length = named.get("length")
        return length if plain and isinstance(length, int) and 0 <= length <= count else None
    if func is Tensor.__getitem__ and isinstance(args[0], slice):
        begin, end, step = args[0].start, args[0].stop, args[0].step
        if begin in (None, 0) and step in (None, 1) and (end is None or isinstance(end, int)):
            return len(range(count)[:end])
    return None
