"""Calls in a CUDA stream of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def in_own_stream(device: torch.device, call: Callable[[], T]) -> T:
    """Returns the result once the stream has done its work; on a CPU, what `call` returns."""
    if device.type == "cpu":
        return call()
    with torch.cuda.stream(torch.cuda.Stream(device)):
        result = call()
        torch.cuda.current_stream().synchronize()
        return result
