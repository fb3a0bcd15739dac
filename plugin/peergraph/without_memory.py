"""Tensors that have a shape, but no memory: what torch does with their address is an error.

torch checks an address only where C++ code may write to it. ``plain.data = x`` gives the memory of
`x` to a plain tensor, whose operations then read at the address 0.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

T = TypeVar("T", bound=Tensor)

_KEY = "FPGA"
"""A dispatch key for which torch has no kernels. It comes after `Python`, so that operations of a
tensor subclass do not see it; a plain tensor that takes over its memory takes over its keys, too,
except `Python`."""
_KEYS = torch._C.DispatchKeySet(torch._C._dispatch_key_parse(_KEY))


def make_without_memory(cls: type[T], shape: Any, **options: Any) -> T:
    """Returns a tensor of a class with ``__torch_dispatch__``.

    Args:
        shape: its sizes.
        options: of ``Tensor._make_wrapper_subclass``.
    """
    wrapper: T = Tensor._make_wrapper_subclass(cls, shape, _extra_dispatch_keys=_KEYS, **options)
    torch._C._set_throw_on_mutable_data_ptr(wrapper)
    return wrapper


class WithoutMemory(Tensor):
    """A base class of tensors that :func:`make_without_memory` makes.

    torch finds the type of these methods' results by the dispatch keys.
    """

    __slots__ = ()

    def new(self, *args: Any, **options: Any) -> Any:
        """As ``Tensor.new``: a plain tensor of this dtype, on this device."""
        return self._empty().new(*args, **options)

    def new_tensor(self, *args: Any, **options: Any) -> Tensor:
        """As ``Tensor.new_tensor``: a plain tensor of this dtype, on this device."""
        return self._empty().new_tensor(*args, **options)

    def _empty(self) -> Tensor:
        return torch.empty(0, dtype=self.dtype, device=self.device)


def _refuse(operation: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedError(
        f"{operation}: a plain tensor was given the data of a tensor that has no memory, by "
        "plain.data = x or plain.set_(...); use plain.copy_(values), or x itself in its place"
    )


def _refuse_copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> NoReturn:
    _refuse("aten::copy_")


_libraries: list[Any] = [torch.library.Library("aten", "IMPL", _KEY)]  # type: ignore[no-untyped-call]
# Its kernel, which is one for all keys, reads the memory.
_libraries[0].impl("copy_", _refuse_copy)
if hasattr(torch.library.Library, "fallback"):  # else torch raises its own NotImplementedError
    _libraries.append(torch.library.Library("_", "IMPL", _KEY))  # type: ignore[no-untyped-call]
    _libraries[1].fallback(_refuse)
