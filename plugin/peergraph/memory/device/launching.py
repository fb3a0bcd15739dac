"""Where the compiled module runs what it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch

_most_blocks: ContextVar[int] = ContextVar("peergraph_most_blocks", default=0)

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
    index = with_index(device).index
    chosen = torch.cuda.current_stream(index) if stream is None else stream
    return Launch(index, chosen.cuda_stream, threads)


def stream_address(device: torch.device) -> int:
    """Of the current CUDA stream of `device`; 0 on the CPU."""
    return 0 if device.type == "cpu" else torch.cuda.current_stream(device).cuda_stream


def with_index(device: torch.device) -> torch.device:
    """The device; a GPU without an index is the current one."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


@contextmanager
def limit_blocks(count: int) -> Iterator[None]:
    """Within this, in this thread, kernels that gather take at most `count` blocks of 256 threads.

    For gathers beside other work on the GPU: waiting for memory takes few threads, and the others'
    places are free for kernels of other streams. 0: no limit. ValueError for a negative count.
    """
    if count < 0:
        raise ValueError(f"count must be 0 or more, got {count}")
    token = _most_blocks.set(count)
    try:
        yield
    finally:
        _most_blocks.reset(token)


def most_blocks() -> int:
    """What :func:`limit_blocks` says here; 0: no limit."""
    return _most_blocks.get()
