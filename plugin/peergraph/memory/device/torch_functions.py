"""Functions of torch's C interface, which threads of C++ call without Python's lock."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

import peergraph._C as _C


@cache
def torch_functions(device_type: str) -> _C.TorchFunctions | None:
    """Returns the functions by which a thread allocates tensors of torch on a type of device; None
    if this version of torch lacks one.
    """
    cpu = _library("libtorch_cpu.so")
    gpu = _library("libtorch_cuda.so") if device_type == "cuda" else None
    if cpu is None or (device_type == "cuda" and gpu is None) or adopt_tensors() is None:
        return None
    try:
        return _C.TorchFunctions(
            empty=_address(cpu.aoti_torch_empty_strided),
            data_pointer=_address(cpu.aoti_torch_get_data_ptr),
            delete_tensor=_address(cpu.aoti_torch_delete_tensor_object),
            set_stream=_address(gpu.aoti_torch_create_cuda_stream_guard) if gpu else 0,
            reset_stream=_address(gpu.aoti_torch_delete_cuda_stream_guard) if gpu else 0,
            device_type=getattr(cpu, f"aoti_torch_device_type_{device_type}")(),
            uint8=cpu.aoti_torch_dtype_uint8(),
            int32=cpu.aoti_torch_dtype_int32(),
            int64=cpu.aoti_torch_dtype_int64(),
        )
    except AttributeError:
        return None


@cache
def dtype_number(dtype: torch.dtype) -> int | None:
    """Returns the number of a dtype in the C interface; None if it has none."""
    name = str(dtype).removeprefix("torch.")
    function = getattr(_library("libtorch_cpu.so"), f"aoti_torch_dtype_{name}", None)
    return None if function is None else int(function())


@cache
def adopt_tensors() -> Callable[[list[Any]], list[torch.Tensor]] | None:
    """Returns the function that makes Python's tensors of tensors that a thread has allocated; None
    if this version of torch lacks it.
    """
    interface = getattr(torch._C, "_aoti", None)
    return getattr(interface, "alloc_tensors_by_stealing_from_void_ptrs", None)


@cache
def _library(name: str) -> ctypes.CDLL | None:
    """Returns a library of torch that is loaded; never a second copy of it."""
    try:
        return ctypes.CDLL(name, os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
