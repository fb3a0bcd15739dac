"""Work space of the sampler that outlives a call: the direct maps, and a host mailbox on CUDA."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Workspace:
    """What one running sample needs for itself.

    Args:
        map_sizes: nodes of each type; a direct map of 4 bytes a node is made for each.
        device: of the maps.
        stream: address of the CUDA stream that it is used on, 0 on the CPU.
    """

    def __init__(self, map_sizes: list[int], device: torch.device, stream: int) -> None:
        self._device = device
        self._stream = stream
        # All bits set: a node that is not in the sample.
        self._maps = [torch.full((n,), -1, dtype=torch.int32, device=device) for n in map_sizes]
        self.addresses = [m.data_ptr() for m in self._maps]
        self._mailbox = (
            torch.empty(4, dtype=torch.int64, pin_memory=True) if device.type == "cuda" else None
        )

    @property
    def mailbox_address(self) -> int:
        """Pinned host memory that the device writes sizes to; 0 on the CPU."""
        return 0 if self._mailbox is None else self._mailbox.data_ptr()

    def launch(self) -> tuple[int, int, int]:
        """Device, stream and number of CPU threads, as the compiled module takes them."""
        device = -1 if self._device.type == "cpu" else self._device.index
        return device, self._stream, torch.get_num_threads()


class WorkspacePool:
    """Lends work spaces: never one to two samples at once, and on CUDA each to one stream only, so
    that the stream's order protects it.
    """

    def __init__(self, map_sizes: list[int], device: torch.device) -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.device = device
        self._map_sizes = map_sizes
        self._idle: defaultdict[int, list[Workspace]] = defaultdict(list)

    @contextmanager
    def borrow(self) -> Iterator[Workspace]:
        """A work space for the duration of one sample on the current stream."""
        on_gpu = self.device.type == "cuda"
        stream = torch.cuda.current_stream(self.device).cuda_stream if on_gpu else 0
        # list.pop and list.append are atomic; no lock that a fork could leave held.
        try:
            workspace = self._idle[stream].pop()
        except IndexError:
            workspace = Workspace(self._map_sizes, self.device, stream)
        yield workspace
        # Not after an exception: the maps may then hold entries of the sample that failed.
        self._idle[stream].append(workspace)
