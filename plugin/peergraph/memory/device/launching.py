"""Launch arguments, element types and memory for functions of the compiled module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache

import torch

import peergraph._C as _C
from peergraph.control_groups import usable_cpus

# Least bytes of a tensor in huge pages, as in NumPy. For smaller sizes the allocator reuses memory
# that was touched before.
_MIN_HUGE_PAGE_BYTES = 4 << 20

_most_blocks: ContextVar[int] = ContextVar("peergraph_most_blocks", default=0)

DTYPES: dict[torch.dtype, _C.DType] = {
    getattr(torch, name): dtype for name, dtype in _C.DType.__members__.items()
}
"""The dtypes that kernels support, each with its constant in the compiled module."""

Launch = _C.Launch
"""The launch arguments of a function of the compiled module: device, stream and threads."""


def launch_on(
    device: torch.device,
    stream: torch.cuda.Stream | None = None,
    num_threads: int | None = None,
) -> Launch:
    """Returns the launch arguments for `device` and `stream` (default: the current stream).

    A GPU without an index means the current GPU. `num_threads` is the number of CPU threads
    (default: torch's).
    """
    threads = torch.get_num_threads() if num_threads is None else num_threads
    if is_cpu(device):
        return _launch(-1, 0, threads)
    address = stream_address(device) if stream is None else stream.cuda_stream
    return _launch(with_index(device).index, address, threads)


@cache
def is_cpu(device: torch.device) -> bool:
    """Returns whether the device is a CPU. torch writes ``device.type`` anew in each call, which
    takes six times as long.
    """
    return device.type == "cpu"


def threads_of_rank(world_size: int) -> int:
    """Returns a rank's share of the processors, for work that all ranks do at the same time.

    torch's number of threads may be too small, because torchrun sets it to one.
    """
    share = usable_cpus() // world_size
    return max(share, torch.get_num_threads())


@lru_cache(maxsize=256)
def _launch(device: int, stream: int, num_threads: int) -> Launch:
    return Launch(device=device, stream=stream, num_threads=num_threads)


def stream_address(device: torch.device) -> int:
    """Returns the address of the current CUDA stream of `device`; 0 for the CPU."""
    if is_cpu(device):
        return 0
    # The public function makes a stream object, which takes longer than a launch.
    return int(torch._C._cuda_getCurrentRawStream(with_index(device).index))


def with_index(device: torch.device) -> torch.device:
    """Returns the device with its index; a GPU without an index means the current GPU."""
    if device.index is None and device.type == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return device


@contextmanager
def limit_blocks(count: int) -> Iterator[None]:
    """Returns a context in which gather kernels of this thread use at most `count` blocks of 256
    threads.

    It is for gathers that run concurrently with other work on the GPU: few threads suffice to wait
    for memory, and the other blocks are free for kernels of other streams. 0 means no limit. Raises
    ValueError for a negative count.
    """
    if count < 0:
        raise ValueError(f"count must be 0 or more, got {count}")
    token = _most_blocks.set(count)
    try:
        yield
    finally:
        _most_blocks.reset(token)


def most_blocks() -> int:
    """Returns the limit that :func:`limit_blocks` has set in this context; 0 means no limit."""
    return _most_blocks.get()


def empty(shape: int | Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Does the same as ``torch.empty``; large tensors on the CPU are in huge pages if the system
    has them.
    """
    tensor = torch.empty(shape, dtype=dtype, device=device)
    if tensor.nbytes >= _MIN_HUGE_PAGE_BYTES and is_cpu(device):
        _C.ask_for_huge_pages(tensor.data_ptr(), tensor.nbytes)
    return tensor


class Buffers:
    """Allocates memory for a function of the compiled module while it runs.

    The object is the callback `allocate(num_bytes) -> address`; :meth:`tensor` returns the memory
    at an address as a tensor. The memory lives as long as the object.
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
        """Returns the first `count` items of the buffer at `address`; empty for address 0."""
        if address == 0:
            return torch.empty(0, dtype=dtype, device=self._device)
        buffer, size = self._buffers[address], count * dtype.itemsize
        return (buffer if buffer.shape[0] == size else buffer[:size]).view(dtype)
