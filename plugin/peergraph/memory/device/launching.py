"""Launches: where functions of the compiled module run, and on what elements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

import peergraph._C as _C

_most_blocks: ContextVar[int] = ContextVar("peergraph_most_blocks", default=0)

DTYPES: dict[torch.dtype, _C.DType] = {
    getattr(torch, name): dtype for name, dtype in _C.DType.__members__.items()
}
"""Elements that kernels compute with, as the compiled module names them."""

Launch = _C.Launch
"""Where a function of the compiled module runs: its device, stream and threads."""


def launch_on(
    device: torch.device,
    stream: torch.cuda.Stream | None = None,
    num_threads: int | None = None,
) -> Launch:
    """Returns a launch on `device`, in `stream` (default: the current one).

    A GPU without an index is the current one. `num_threads` on the CPU: torch's by default.
    """
    threads = torch.get_num_threads() if num_threads is None else num_threads
    if device.type == "cpu":
        return Launch(device=-1, stream=0, num_threads=threads)
    index = with_index(device).index
    chosen = torch.cuda.current_stream(index) if stream is None else stream
    return Launch(device=index, stream=chosen.cuda_stream, num_threads=threads)


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
