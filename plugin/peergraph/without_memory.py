"""Tensors that have a shape, but no memory: what torch does with their address is an error.

torch checks an address only where C++ code may write to it. ``plain.data = x`` would give the
memory of `x` to a plain tensor, whose operations then read at the address 0. torch asks first
whether the two types fit, by an operation that a dispatch key of `x` answers with an error.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T", bound=Tensor)

_ANSWERS = hasattr(torch.library.Library, "fallback")
_KEY = "DeferredInit" if _ANSWERS else "FPGA"
"""A dispatch key that torch has no kernels for. All operations but one pass the first on. Of torch
2.4, which cannot be told to do so, it is one that comes after `Python`: operations of a tensor
subclass do not see it, but a plain tensor that takes over the memory takes over the keys, too,
except `Python`, and its operations find no kernel."""
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


def _check_types(target: Tensor, source: Tensor) -> bool:
    """Returns whether ``target.data = source`` may be; asked if one has no memory."""
    if type(source) in (Tensor, torch.nn.Parameter) or type(target) is type(source):
        return True
    raise NotImplementedError(
        f"plain.data = x: x is a {type(source).__name__}, which has no memory to share; use "
        "plain.copy_(values), or x itself in its place"
    )


_libraries: list[Any] = []
if _ANSWERS:
    _libraries += (torch.library.Library(name, "IMPL", _KEY) for name in ("_", "aten"))  # type: ignore[no-untyped-call]
    _libraries[0].fallback(torch.library.fallthrough_kernel)
    _libraries[1].impl("_has_compatible_shallow_copy_type", _check_types)
