"""Where the compiled module runs what it is asked for."""

from __future__ import annotations

from typing import NamedTuple

import torch

DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
"""Elements that kernels compute with, as the compiled module numbers them."""


class Launch(NamedTuple):
    """The last three arguments of most functions of the compiled module."""

    device: int
    """Index of the GPU; -1 is the CPU."""
    stream: int
    """Address of the CUDA stream; 0 on the CPU."""
    num_threads: int
    """For what is done on the CPU, also beside a GPU."""


def launch_on(device: torch.device, stream: torch.cuda.Stream | None = None) -> Launch:
    """Work on `device`, in `stream` (default: the current one), with torch's number of threads.

    A GPU without an index is the current one.
    """
    threads = torch.get_num_threads()
    if device.type == "cpu":
        return Launch(-1, 0, threads)
    index = torch.cuda.current_device() if device.index is None else device.index
    chosen = torch.cuda.current_stream(index) if stream is None else stream
    return Launch(index, chosen.cuda_stream, threads)
