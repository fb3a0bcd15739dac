"""Slots: the memory of a batch's sample, where a CUDA graph writes and another one reads."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from peergraph.integration.captured.batch_bounds import fits
from peergraph.integration.captured.staged_tensors import StagedTensors
from peergraph.integration.captured.training_batches import BatchRequest
from peergraph.memory import record_cuda_graph
from peergraph.sampling import StaticShapeSample, StaticShapeSampler


class Slot:
    """A sample of a static shape on the CPU.

    Args:
        sampler: of full batches.
        extras: those of a full batch.

    Attributes:
        sample: the sample that was started last.
        extras: those of its batch, on the device of the sample.
    """

    sample: StaticShapeSample
    extras: Any

    def __init__(self, sampler: StaticShapeSampler, extras: Any) -> None:
        self._sampler = sampler
        shape = sampler.shape
        rooms = {t: shape.padding_row(t) for t in shape.rows_per_hop}
        self._rooms = {t: room for t, room in rooms.items() if room > 0}
        self._layout = _layout_of(extras)
        self._has_room = False

    def start(self, request: BatchRequest) -> None:
        """Samples the neighbourhood of a full batch's seeds, if there is room for them."""
        seeds = {t: request.nodes[t] for t in self._rooms}
        self._has_room = self._layout == _layout_of(request.extras) and all(
            len(ids) <= self._rooms[t] for t, ids in seeds.items()
        )
        if self._has_room:
            self._start(list(seeds.values()), request)

    def _start(self, seeds: list[Tensor], request: BatchRequest) -> None:
        rooms = self._rooms.items()
        self.sample = self._sampler.sample(
            {
                t: F.pad(ids, (0, room - len(ids)))
                for (t, room), ids in zip(rooms, seeds, strict=True)
            },
            request.seed,
            num_seeds={t: _number(len(ids)) for t, ids in zip(self._rooms, seeds, strict=True)},
        )
        self.extras = request.extras

    def fits(self) -> bool:
        """Returns whether there is room for the batch; on a GPU, waits until it is sampled."""
        return self._has_room and fits(self._sampler.shape, *self._counts())

    def _counts(self) -> tuple[dict[Any, list[int]], dict[Any, list[int]]]:
        """Returns the numbers of nodes and of edges of the sample, by type."""
        nodes = {t: counts.tolist() for t, counts in self.sample.num_nodes.items()}
        return nodes, {t: counts.tolist() for t, counts in self.sample.num_edges.items()}

    def release(self) -> None:
        """Lets the next sample be written after the work of the current stream."""


class GpuSlot(Slot):
    """A sample that a CUDA graph makes, on a stream beside the training.

    Args:
        sampler, extras: as for a slot.
        stream: the stream of the samples.
    """

    def __init__(self, sampler: StaticShapeSampler, extras: Any, stream: torch.cuda.Stream) -> None:
        super().__init__(sampler, extras)
        self._stream = stream
        device = stream.device
        # The seeds and their number of each type, the seed of the random numbers, the extras.
        ids = [torch.zeros(room, dtype=torch.int64, device="cpu") for room in self._rooms.values()]
        leaves, spec = tree_flatten(extras)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        numbers = [_number(0)] * (len(ids) + 1)
        self._input = StagedTensors([*ids, *numbers, *tensors], device)
        staged = iter(self._input.tensors)
        self._seeds = dict(zip(self._rooms, islice(staged, len(ids)), strict=True))
        self._num_seeds = dict(zip(self._rooms, islice(staged, len(ids)), strict=True))
        self._seed = next(staged)
        leaves = [next(staged) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.extras = tree_unflatten(leaves, spec)
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
        self.sample, self._device_counts = sample_and_counts
        self._host_counts = torch.zeros(
            len(self._device_counts), dtype=torch.int64, device="cpu", pin_memory=True
        )

    def _draw(self) -> tuple[StaticShapeSample, Tensor]:
        sample = self._sampler.sample(self._seeds, self._seed, num_seeds=self._num_seeds)
        return sample, torch.cat([*sample.num_nodes.values(), *sample.num_edges.values()])

    def _start(self, seeds: list[Tensor], request: BatchRequest) -> None:
        """As of a slot; does not wait for the sample."""
        self._sample_end.synchronize()  # the last copy from the staging memory
        tensors = [leaf for leaf in tree_flatten(request.extras)[0] if isinstance(leaf, Tensor)]
        numbers = map(_number, [*map(len, seeds), request.seed])
        self._input.write([*seeds, *numbers, *tensors])
        current = torch.cuda.current_stream(self._stream.device)
        stream = self._stream if _can_overlap_replays() else current
        stream.wait_event(self._read)
        with torch.cuda.stream(stream):
            self._input.upload()
            self._graph.replay()
            self._host_counts.copy_(self._device_counts, non_blocking=True)
            self._sample_end.record()

    def _counts(self) -> tuple[dict[Any, list[int]], dict[Any, list[int]]]:
        """As of a slot. The current stream then waits for the sample."""
        self._sample_end.synchronize()
        counts = iter(self._host_counts.tolist())
        torch.cuda.current_stream(self._stream.device).wait_event(self._sample_end)
        nodes = {t: list(islice(counts, len(x))) for t, x in self.sample.num_nodes.items()}
        return nodes, {t: list(islice(counts, len(x))) for t, x in self.sample.num_edges.items()}

    def release(self) -> None:
        """As of a slot."""
        self._read.record(torch.cuda.current_stream(self._stream.device))


def _layout_of(extras: Any) -> tuple[Any, ...]:
    leaves, spec = tree_flatten(extras)
    kinds = [(x.shape, x.dtype) if isinstance(x, Tensor) else x for x in leaves]
    return spec, kinds


def _number(value: int) -> Tensor:
    return torch.tensor([value], dtype=torch.int64, device="cpu")


def _can_overlap_replays() -> bool:
    """Returns whether a CUDA graph may be replayed while one with random numbers runs on another
    stream.

    Before torch 2.9, each replay writes to the memory that all graphs read the state of the
    generator from.
    """
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 9)
