"""Work space that a sampler reuses: direct maps of nodes and, on CUDA, pinned memory for sizes."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from peergraph import _C
from peergraph.memory.device.launching import Launch, empty, launch_on, stream_address, with_index

# Bits of a word of a direct map that a sample writes. The other 8 bits are the epoch, so the map
# is cleared every 256 samples. Samples of more than 2**23 edges a hop use more bits.
LEAST_ENTRY_BITS = 24

MOST_SCRATCH = {"cpu": 16 << 20, "cuda": 256 << 20}
"""The most bytes of scratch memory that a sample gets at once, by type of device. On the CPU, the
allocator would map larger memory anew for each sample. On a GPU, larger blocks would be cut up by
tensors that are allocated between two samples."""


class Workspace:
    """The work space of one running sample.

    Args:
        map_sizes: number of nodes of each type; each type gets a direct map of 4 bytes per node.
        device: device of the maps.
        mailbox_words: number of sizes that the device writes at once.

    Attributes:
        maps: the direct maps, all -1 at first. Code that writes to them restores the -1.
        node_maps: the same maps with epochs, which need no clearing between samples.
        mailbox: pinned host memory that the device writes sizes to; None on the CPU.
    """

    def __init__(self, map_sizes: list[int], device: torch.device, mailbox_words: int) -> None:
        self._device = device
        self.maps = [empty(n, torch.int32, device).fill_(-1) for n in map_sizes]
        self.node_maps = [_C.NodeMap(words=m, least_bits=LEAST_ENTRY_BITS) for m in self.maps]
        self.mailbox: torch.Tensor | None = None
        self._scratch_bytes = 0
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.mailbox = torch.empty(
                mailbox_words, dtype=torch.int64, pin_memory=True, device="cpu"
            )
            self._stream = torch.cuda.current_stream(device)
            self._last_use = torch.cuda.Event()  # type: ignore[no-untyped-call]

    @property
    def stream_address(self) -> int:
        """The address of the stream of the last use; 0 on the CPU."""
        return 0 if self._stream is None else self._stream.cuda_stream

    def launch(self) -> Launch:
        """Returns the launch arguments for the stream that borrowed the work space."""
        return launch_on(self._device, self._stream)

    def scratch(self) -> torch.Tensor | None:
        """Returns memory for one sample, as much as the largest sample so far took; None before
        the first one. What is allocated while a sample runs waits for Python's lock each time.
        """
        if self._scratch_bytes == 0:
            return None
        return empty(self._scratch_bytes, torch.uint8, self._device)

    def expect_scratch(self, num_bytes: int) -> None:
        """Tells the scratch memory that a sample took."""
        most = MOST_SCRATCH[self._device.type]
        self._scratch_bytes = min(max(self._scratch_bytes, num_bytes), most)

    def begin_use(self, address: int) -> None:
        """Makes the current stream wait for the last use if that was on another stream.

        Args:
            address: of the current stream.
        """
        if self._stream is None or self._stream.cuda_stream == address:
            return
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._last_use)
        for node_map in self.maps:
            node_map.record_stream(stream)
        self._stream = stream

    def end_use(self) -> None:
        """Marks the end of a use on its stream."""
        if self._device.type == "cuda":
            self._last_use.record(self._stream)


class WorkspacePool:
    """Lends work spaces, each to one sample at a time. The pool grows to the largest number of
    samples that ran at once.
    """

    def __init__(self, map_sizes: list[int], device: torch.device, mailbox_words: int = 0) -> None:
        self.device = with_index(device)
        self._map_sizes = map_sizes
        self._mailbox_words = mailbox_words
        # By the address of the stream of the last use. list.pop and list.append are atomic, so
        # no lock is needed, which a fork could leave held.
        self._idle: defaultdict[int, list[Workspace]] = defaultdict(list)
        self._workspaces: weakref.WeakSet[Workspace] = weakref.WeakSet()

    @property
    def num_bytes(self) -> int:
        """Bytes of the maps of all work spaces, those in use included."""
        return len(self._workspaces) * 4 * sum(self._map_sizes)

    @contextmanager
    def borrow(self) -> Iterator[Workspace]:
        """Lends a work space to one sample on the current stream."""
        workspace = self.lend()
        yield workspace
        # After an exception the work space is dropped: its maps may hold entries of the sample.
        self.take_back(workspace)

    def lend(self) -> Workspace:
        """Lends a work space for samples on the current stream, one after the other."""
        stream = stream_address(self.device)
        workspace = self._take(stream)
        workspace.begin_use(stream)
        return workspace

    def take_back(self, workspace: Workspace) -> None:
        """Takes a work space back. Do not call it after an exception of a sample."""
        workspace.end_use()
        self._idle[workspace.stream_address].append(workspace)

    def _take(self, stream: int) -> Workspace:
        """Returns an idle work space of this stream, else of another stream, else a new one."""
        for idle in (self._idle[stream], *list(self._idle.values())):
            try:
                return idle.pop()
            except IndexError:
                continue
        workspace = Workspace(self._map_sizes, self.device, self._mailbox_words)
        self._workspaces.add(workspace)
        return workspace
