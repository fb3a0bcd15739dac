"""Functions of torch's C interface that never have memory."""

from __future__ import annotations

import ctypes

import torch

import peergraph._C as _C
from peergraph.memory.device.torch_functions import dtype_number

_fails = ctypes.CFUNCTYPE(ctypes.c_int32)(lambda: 1)


def functions_without_memory() -> _C.TorchFunctions:
    address = ctypes.cast(_fails, ctypes.c_void_p).value
    assert address is not None
    return _C.TorchFunctions(
        **dict.fromkeys(("empty", "data_pointer", "delete_tensor"), address),
        **dict.fromkeys(("set_stream", "reset_stream"), 0),
        **dict.fromkeys(("device_type", "uint8", "int32"), 0),
        int64=dtype_number(torch.int64) or 0,
    )
