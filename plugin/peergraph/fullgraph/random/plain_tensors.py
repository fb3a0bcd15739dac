"""The same random numbers on plain tensors in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from peergraph.fullgraph.random import draws  # noqa: F401  (registers operations)
from peergraph.fullgraph.random.dropout import feature_dropout
from peergraph.fullgraph.random.rows import RANDOM_OPS

aten = torch.ops.aten
_DROPOUTS = {
    *(aten.dropout.default, aten.feature_dropout.default),
    *(aten.alpha_dropout.default, aten.feature_alpha_dropout.default),
}


@contextmanager
def keyed_random() -> Iterator[None]:
    """Within this, plain tensors get the random numbers that partitioned tensors get.

    Dropout and the other random operations of torch draw a seed from torch's default generator of
    the CPU and key their numbers by row and column: row r of a plain tensor, along its first
    dimension, gets what the user's row r of a partitioned tensor gets. A model that runs in one
    process on plain tensors then has the masks that it has on partitioned tensors, at any number of
    ranks. Factory functions such as ``torch.rand`` are unchanged.
    """
    with _Functions(), _Operations():  # type: ignore[no-untyped-call]
        yield


class _Functions(TorchFunctionMode):
    """Dropout of rows, whose mask has its only row along dimension 1."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drops_rows = func is F.dropout1d and isinstance(args[0], Tensor) and args[0].dim() == 2
        return (feature_dropout if drops_rows else func)(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _DROPOUTS and not args[2]:
            return args[0]  # as torch does; taken apart in inference mode, they return a copy
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        rule = RANDOM_OPS.get(func, func) if tensors else func
        in_inference = torch.is_inference_mode_enabled() or any(x.is_inference() for x in tensors)
        if rule is func and in_inference:
            with self:  # functions that torch defines by others come as they are there
                result = func.decompose(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        return rule(*args, **(kwargs or {}))
