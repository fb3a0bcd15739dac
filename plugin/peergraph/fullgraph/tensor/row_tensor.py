"""One row as a plain tensor, which is a view in torch: it follows its tensor and is followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.fullgraph.tensor.nested import map_nested

_Token = Callable[[], object]


class _Row:
    """A row of a partitioned tensor, and its values when they were read last.

    Args:
        base: the partitioned tensor.
        index: of the row in `base`.
        value: the row, equal on all ranks, with autograd's history.
        token: returns what is equal as long as `base` does not change.
    """

    def __init__(self, base: Tensor, index: tuple[Any, ...], value: Tensor, token: _Token) -> None:
        self.base, self.index, self.value = base, index, value
        self._is_unrecorded = value.requires_grad and value.is_leaf
        """Whether it is a view that was made without gradients, which never gets a history."""
        self._token = token
        self._last_token = token()

    def read_again(self) -> None:
        """Reads the row if the tensor has changed. Collective then.

        Raises:
            RuntimeError: gradients flow through the row; they would be those of the row before.
        """
        if self._token() == self._last_token:
            return
        has_history = self.value.requires_grad and not self._is_unrecorded
        if has_history or (self.base.requires_grad and torch.is_grad_enabled()):
            raise RuntimeError(
                "a row was taken of a tensor that was changed in place since: take it again, x[row]"
            )
        with torch.no_grad():
            self.value.copy_(self.base[self.index])
        self._last_token = self._token()

    def write(self, changed: Tensor) -> None:
        """Writes the row into the tensor. Collective; differentiable, unless `changed`, through
        which the row was changed, is one of ``.data`` or ``detach()``.
        """
        is_detached = self.value.requires_grad and not changed.requires_grad
        if is_detached or not torch.is_grad_enabled():
            with torch.no_grad():
                self.base[self.index] = self.value.detach()
        else:
            self.base[self.index] = self.value
        self._last_token = self._token()


class RowTensor(Tensor):
    """A plain row of a partitioned tensor, or a view of it, equal on all ranks.

    Functions compute on the plain values. What is written into it is written into the tensor that
    the row is of; it is read again where that tensor has changed since. Made with :func:`row_of`.
    """

    _row: _Row
    _plain: Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rows: list[RowTensor] = []

        def plain(value: Any) -> Any:
            if isinstance(value, RowTensor):
                rows.append(value)
                return value._plain
            return value

        args, kwargs = map_nested(args, plain), map_nested(kwargs or {}, plain)
        for row in rows:
            row._row.read_again()
        versions = [_version_of(row._plain) for row in rows]
        result = func(*args, **kwargs)
        for row, version in zip(rows, versions, strict=True):
            if _version_of(row._plain) != version:
                row._row.write(row._plain)
        if isinstance(result, np.ndarray):
            result = result.copy()
            result.setflags(write=False)  # a write would not reach the tensor
        return map_nested(result, lambda value: _as_row(value, rows))


def row_of(base: Tensor, index: tuple[Any, ...], value: Tensor, token: _Token) -> Tensor:
    """Returns a row as a tensor that shares its writes with `base`: see :class:`_Row`."""
    return _wrapped(value, _Row(base, index, value, token))


def _wrapped(value: Tensor, row: _Row) -> RowTensor:
    with torch._C.DisableTorchFunctionSubclass():
        result: RowTensor = value.as_subclass(RowTensor)
    result._row, result._plain = row, value
    return result


def _as_row(value: Any, rows: list[RowTensor]) -> Any:
    """Returns a result that shares memory with a row as a row, too."""
    if type(value) is not Tensor:
        return value
    memory = _memory_of(value)
    for row in rows:
        if row._plain is value:
            return row
        if memory is not None and memory == _memory_of(row._plain):
            return _wrapped(value, row._row)
    return value


def _memory_of(value: Tensor) -> int | None:
    if value.layout != torch.strided:
        return None
    memory = value.untyped_storage()
    return memory._cdata if memory.nbytes() else None


def _version_of(value: Tensor) -> int:
    return 0 if value.is_inference() else value._version
