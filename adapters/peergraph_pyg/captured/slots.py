"""Slots: the memory of a batch's sample, where a CUDA graph writes and another one reads."""

from __future__ import annotations

from itertools import islice

import torch
from torch import Tensor

from peergraph.memory import record_cuda_graph
from peergraph.sampling import StaticShapeSample, StaticShapeSampler
from peergraph.store import NodeType

from .. import compat
from .static_batch import fits


class Slot:
    """A sample of a static shape on the CPU.

    Args:
        sampler: of full batches.
        node_type: of the seeds.
        size: seeds of a batch.
    """

    sample: StaticShapeSample
    input_id: Tensor

    def __init__(self, sampler: StaticShapeSampler, node_type: NodeType, size: int) -> None:
        self._sampler = sampler
        self._node_type = node_type
        self._size = size

    def start(self, seeds: Tensor, input_id: Tensor, seed: int) -> None:
        """Samples the neighbourhood of full batch of seeds.

        Args:
            seeds, input_id: [size] ids of nodes, and their positions among the input nodes.
            seed: of the random numbers.
        """
        self.sample = self._sampler.sample({self._node_type: seeds}, seed)
        self.input_id = input_id

    def fits(self) -> bool:
        """Returns whether the sample has room; on a GPU, waits until it is made."""
        nodes = {t: counts.tolist() for t, counts in self.sample.num_nodes.items()}
        edges = {t: counts.tolist() for t, counts in self.sample.num_edges.items()}
        return fits(self._sampler.shape, nodes, edges)

    def release(self) -> None:
        """Lets the next sample be written after the work of the current stream."""


class GpuSlot(Slot):
    """A sample that a CUDA graph makes, on a stream beside the training.

    Args:
        sampler, node_type, size: as for a slot.
        stream: the stream of the samples.
    """

    def __init__(
        self,
        sampler: StaticShapeSampler,
        node_type: NodeType,
        size: int,
        stream: torch.cuda.Stream,
    ) -> None:
        super().__init__(sampler, node_type, size)
        self._stream = stream
        device = stream.device
        # Seeds, their positions, and the seed of the random numbers.
        words = 2 * size + 1
        self._staging = torch.zeros(words, dtype=torch.int64, device="cpu", pin_memory=True)
        self._input = torch.zeros(words, dtype=torch.int64, device=device)
        self.input_id = self._input[size : 2 * size]
        self._sample_end = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._read = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._draw()  # a capture must not be the first call
            stream.synchronize()
            # The graphs of slots have memory of their own: a graph that shared it might write where
            # another one's sample is still trained on.
            self._graph, sample_and_counts = record_cuda_graph(self._draw, stream)
        self.sample, self._counts = sample_and_counts
        self._counts_on_host = torch.zeros(
            len(self._counts), dtype=torch.int64, device="cpu", pin_memory=True
        )

    def _draw(self) -> tuple[StaticShapeSample, Tensor]:
        seeds = {self._node_type: self._input[: self._size]}
        sample = self._sampler.sample(seeds, self._input[-1:])
        return sample, torch.cat([*sample.num_nodes.values(), *sample.num_edges.values()])

    def start(self, seeds: Tensor, input_id: Tensor, seed: int) -> None:
        """As of a slot; does not wait for the sample."""
        self._sample_end.synchronize()  # the last copy from the staging memory
        self._staging[: self._size] = seeds
        self._staging[self._size : -1] = input_id
        self._staging[-1] = seed
        current = torch.cuda.current_stream(self._stream.device)
        stream = self._stream if compat.can_overlap_replays() else current
        stream.wait_event(self._read)
        with torch.cuda.stream(stream):
            self._input.copy_(self._staging, non_blocking=True)
            self._graph.replay()
            self._counts_on_host.copy_(self._counts, non_blocking=True)
            self._sample_end.record()

    def fits(self) -> bool:
        """As of a slot. The current stream then waits for the sample."""
        self._sample_end.synchronize()
        counts = iter(self._counts_on_host.tolist())
        torch.cuda.current_stream(self._stream.device).wait_event(self._sample_end)
        nodes = {t: list(islice(counts, len(x))) for t, x in self.sample.num_nodes.items()}
        edges = {t: list(islice(counts, len(x))) for t, x in self.sample.num_edges.items()}
        return fits(self._sampler.shape, nodes, edges)

    def release(self) -> None:
        """As of a slot."""
        self._read.record(torch.cuda.current_stream(self._stream.device))
