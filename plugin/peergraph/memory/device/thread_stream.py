"""A CUDA stream of a new thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from peergraph.memory.device.capture_mode import use_thread_local_capture_mode


@contextmanager
def on_thread_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Returns a context in which a new thread works on a stream, also while another thread captures
    a CUDA graph.

    Args:
        stream: the stream; None on a CPU, where the context does nothing.
    """
    if stream is None:
        yield
        return
    # A thread begins on GPU 0 and would return to it after the stream; each process would then
    # create a CUDA context on that GPU.
    torch.cuda.set_device(stream.device)
    use_thread_local_capture_mode()
    with torch.cuda.stream(stream):
        yield
