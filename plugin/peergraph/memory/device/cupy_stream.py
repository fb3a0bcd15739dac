"""Runs CuPy's kernels in torch's streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def cupy_stream(device: torch.device) -> Iterator[Any]:
    """Returns a context in which CuPy uses `device` and torch's current stream on it; yields the
    stream.

    A user's own kernels then run in order with torch's and Peergraph's. Raises ImportError without
    CuPy.

    Args:
        device: a GPU, with an index.
    """
    import cupy

    address = torch.cuda.current_stream(device).cuda_stream
    # CuPy has it from version 14 on; older versions have ExternalStream.
    from_external = getattr(cupy.cuda.Stream, "from_external", None)
    if from_external is None:
        stream = cupy.cuda.ExternalStream(address)
    else:
        stream = from_external(_Address(address))
    with cupy.cuda.Device(device.index), stream:
        yield stream


class _Address:
    """A stream given by its address, in the form of the CUDA stream protocol."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address
