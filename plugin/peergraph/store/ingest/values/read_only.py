"""Converts arrays of Arrow to tensors."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray


def as_tensor(values: NDArray[Any]) -> Tensor:
    """Returns a tensor on the same memory. Do not write to it if the array is read-only, as Arrow's
    arrays are; torch would warn about it.
    """
    if values.flags.writeable or values.size == 0:
        return torch.from_numpy(values if values.flags.writeable else values.copy())
    memory: Any = (ctypes.c_byte * values.nbytes).from_address(values.ctypes.data)
    memory.owner = values  # keeps the memory
    return torch.from_numpy(np.frombuffer(memory, values.dtype).reshape(values.shape))
