"""Tensors that have a shape and a dtype, but no memory of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class WithoutStorage(Tensor):
    """A wrapper subclass whose values come of :meth:`whole`.

    Subclasses implement ``__torch_dispatch__``. Here are the methods that torch runs on the storage
    without dispatching.
    """

    # Results of operations are plain tensors: nothing to wrap.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def whole(self) -> Tensor:
        """The values as a plain tensor."""
        raise NotImplementedError

    def numpy(self, *, force: bool = False) -> Any:
        """A NumPy array of :meth:`whole`."""
        return self.whole().numpy(force=force)

    def __array__(self, dtype: Any = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.whole().__dlpack__(**kwargs)

    def tolist(self) -> Any:
        """The values as nested lists."""
        return self.whole().tolist()
