"""Tensors that have a shape and a dtype, but no storage."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch
from torch import Tensor
from typing_extensions import Self

from peergraph.without_memory import WithoutMemory, make_without_memory


class StoragelessTensor(WithoutMemory):
    """A wrapper subclass of ``torch.Tensor`` that gets its values from :meth:`materialize`.

    Subclasses implement ``__torch_dispatch__``. This class overrides the methods that torch runs on
    the storage without dispatching. ``multiprocessing`` pickles such a tensor by
    :meth:`reduce_to_process`, other picklers by ``__reduce_ex__``.
    """

    # Results of operations are plain tensors, which are not wrapped.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __init_subclass__(cls) -> None:
        # The pickler looks up the exact class, as for torch's tensors.
        ForkingPickler.register(cls, cls.reduce_to_process)

    @classmethod
    def _make(
        cls, shape: tuple[int, ...], dtype: torch.dtype | None, device: torch.device, **more: Any
    ) -> Self:
        # A tensor of inference mode could not serve gradients later.
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return make_without_memory(cls, shape, dtype=dtype, device=device, **more)
        return make_without_memory(cls, shape, dtype=dtype, device=device, **more)

    def materialize(self) -> Tensor:
        """Returns the values as a plain tensor."""
        raise NotImplementedError

    def reduce_to_process(self) -> Any:
        """Does the same as ``__reduce_ex__``, for processes of this machine."""
        raise NotImplementedError

    @property
    def data(self) -> Tensor:
        """The same values, without gradients; cannot be assigned."""
        return self.detach()

    @data.setter
    def data(self, values: Tensor) -> NoReturn:
        raise NotImplementedError(
            f"x.data = values: {type(self).__name__} has no memory to exchange; write to it by "
            "x.copy_(values), or put a plain tensor in its place"
        )

    def numpy(self, *, force: bool = False) -> Any:
        """Returns the result of :meth:`materialize` as a NumPy array."""
        return self.materialize().numpy(force=force)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.materialize().__dlpack__(**kwargs)

    def tolist(self) -> Any:
        """Returns the values as nested lists."""
        return self.materialize().tolist()

    def apply_(self, function: Any) -> NoReturn:
        """Raises ``NotImplementedError``."""
        raise NotImplementedError(
            f"apply_ is not supported by {type(self).__name__}; work on x.clone()"
        )


def dispatch_mode(func: Any) -> AbstractContextManager[Any]:
    """Returns a context that leaves inference mode if torch treats results of `func` as views.

    A view of a normal tensor must be a normal tensor, even in inference mode. In inference mode,
    operations on materialized values would make inference tensors.
    """
    if torch.is_inference_mode_enabled() and any(
        returned.alias_info is not None for returned in func._schema.returns
    ):
        return torch.inference_mode(False)
    return nullcontext()
