"""Launches: where functions of the compiled module run, on what elements, and in what memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch

import peergraph._C as _C

# NumPy's limit, too. For smaller sizes the allocator reuses memory that was touched before.
_WORTH_HUGE_PAGES = 4 << 20

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


def empty(shape: int | Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As ``torch.empty``; large tensors on the CPU are in huge pages, where the system has them."""
    made = torch.empty(shape, dtype=dtype, device=device)
    if device.type == "cpu" and made.nbytes >= _WORTH_HUGE_PAGES:
        _C.ask_for_huge_pages(made.data_ptr(), made.nbytes)
    return made


class Buffers:
    """Allocates memory for a function of the compiled module while it runs.

    The object is the callback `allocate(num_bytes) -> address`; :meth:`tensor` returns what was
    allocated at an address. The memory is kept as long as the object.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[int, torch.Tensor] = {}

    def __call__(self, num_bytes: int) -> int:
        buffer = empty(num_bytes, torch.uint8, self._device)
        address = buffer.data_ptr()
        self._buffers[address] = buffer
        return address

    def tensor(self, address: int, dtype: torch.dtype, count: int) -> torch.Tensor:
        """The first `count` items of the buffer at `address`; empty for address 0."""
        if address == 0:
            return torch.empty(0, dtype=dtype, device=self._device)
        return self._buffers[address][: count * dtype.itemsize].view(dtype)
