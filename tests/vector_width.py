"""The CPU's kernels with vectors and threads as a test wants them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

import peergraph._C as _C


@contextmanager
def running(vector_bytes: int, threads: int) -> Iterator[None]:
    """With vectors of at most so many bytes, and so many threads."""
    widest, most = _C.limit_vector_bytes(vector_bytes), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        _C.limit_vector_bytes(widest)
        torch.set_num_threads(most)
