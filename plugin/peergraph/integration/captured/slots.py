"""Slots: the memory of a batch's sample, where a CUDA graph writes and another one reads."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from peergraph.integration.captured.batch_bounds import fits
from peergraph.integration.captured.staged_tensors import StagedTensors
from peergraph.integration.captured.training_batches import BatchRequest
from peergraph.memory import record_cuda_graph
from peergraph.sampling import StaticShapeSample, StaticShapeSampler
from peergraph.store import EdgeType, NodeType


class _Inputs(NamedTuple):
    """The arguments of a sample, and the extras of its batch."""

    seeds: dict[NodeType, Tensor]
    num_seeds: dict[NodeType, Tensor]
    seed: Tensor
    times: dict[str, dict[NodeType, Tensor]]
    excluded: dict[EdgeType, Tensor]
    extras: Any

    def sample_by(self, sampler: StaticShapeSampler) -> StaticShapeSample:
        """Draws the sample."""
        return sampler.sample(
            self.seeds, self.seed, num_seeds=self.num_seeds, exclude=self.excluded, **self.times
        )


class Slot:
    """A sample of a static shape on the CPU.

    Args:
        sampler: of full batches.
        example: a full batch.

    Attributes:
        sample: the sample that was started last.
        extras: those of its batch, on the device of the sample.
    """

    sample: StaticShapeSample
    extras: Any

    def __init__(self, sampler: StaticShapeSampler, example: BatchRequest) -> None:
        self._sampler = sampler
        shape = sampler.shape
        rooms = {t: shape.padding_row(t) for t in shape.rows_per_hop}
        self._rooms = {t: room for t, room in rooms.items() if room > 0}
        self._layout = _layout_of(example)
        self._has_room = False

    def start(self, request: BatchRequest) -> None:
        """Samples the neighbourhood of a full batch's seeds, if there is room for them."""
        self._has_room = self._layout == _layout_of(request) and all(
            len(request.nodes[t]) <= room for t, room in self._rooms.items()
        )
        if self._has_room:
            self._start(self._inputs(request))

    def _start(self, inputs: _Inputs) -> None:
        self.sample, self.extras = inputs.sample_by(self._sampler), inputs.extras

    def _inputs(self, request: BatchRequest) -> _Inputs:
        """Returns the inputs of a batch, whose seeds are padded to the fixed length."""

        def padded(of_types: dict[NodeType, Tensor]) -> dict[NodeType, Tensor]:
            return {
                t: F.pad(of_types[t], (0, room - len(of_types[t])))
                for t, room in self._rooms.items()
            }

        return _Inputs(
            padded(request.nodes),
            {t: _number(len(request.nodes[t])) for t in self._rooms},
            _number(request.seed),
            {name: padded(of_types) for name, of_types in request.times.items()},
            request.excluded,
            request.extras,
        )

    def fits(self) -> bool:
        """Returns whether there is room for the batch; on a GPU, waits until it is sampled."""
        return self._has_room and fits(self._sampler.shape, *self._counts())

    def _counts(self) -> tuple[dict[Any, list[int]], dict[Any, list[int]]]:
        """Returns the numbers of nodes and of edges of the sample, by type."""
        nodes = {t: counts.tolist() for t, counts in self.sample.num_nodes.items()}
        return nodes, {t: counts.tolist() for t, counts in self.sample.num_drawn_edges.items()}

    def release(self) -> None:
        """Allows the next sample to overwrite this one, after the work of the current stream."""


class GpuSlot(Slot):
    """A sample that a CUDA graph makes, on a stream beside the training.

    Args:
        sampler, example: as for a slot.
        stream: the stream of the samples.
    """

    def __init__(
        self, sampler: StaticShapeSampler, example: BatchRequest, stream: torch.cuda.Stream
    ) -> None:
        super().__init__(sampler, example)
        self._stream = stream
        device = stream.device
        leaves, spec = tree_flatten(self._inputs(example))
        self._staged = StagedTensors([x for x in leaves if isinstance(x, Tensor)], device)
        staged = iter(self._staged.tensors)
        leaves = [next(staged) if isinstance(x, Tensor) else x for x in leaves]
        self._device_inputs: _Inputs = tree_unflatten(leaves, spec)
        self.extras = self._device_inputs.extras
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
        sample = self._device_inputs.sample_by(self._sampler)
        return sample, torch.cat([*sample.num_nodes.values(), *sample.num_drawn_edges.values()])

    def _start(self, inputs: _Inputs) -> None:
        """As of a slot; does not wait for the sample."""
        self._sample_end.synchronize()  # the last copy from the staging memory
        self._staged.write([leaf for leaf in tree_flatten(inputs)[0] if isinstance(leaf, Tensor)])
        current = torch.cuda.current_stream(self._stream.device)
        stream = self._stream if _can_overlap_replays() else current
        stream.wait_event(self._read)
        with torch.cuda.stream(stream):
            self._staged.upload()
            self._graph.replay()
            self._host_counts.copy_(self._device_counts, non_blocking=True)
            self._sample_end.record()

    def _counts(self) -> tuple[dict[Any, list[int]], dict[Any, list[int]]]:
        """As of a slot. The current stream then waits for the sample."""
        self._sample_end.synchronize()
        counts = iter(self._host_counts.tolist())
        torch.cuda.current_stream(self._stream.device).wait_event(self._sample_end)
        nodes = {t: list(islice(counts, len(x))) for t, x in self.sample.num_nodes.items()}
        edges = self.sample.num_drawn_edges
        return nodes, {t: list(islice(counts, len(x))) for t, x in edges.items()}

    def release(self) -> None:
        """As of a slot."""
        self._read.record(torch.cuda.current_stream(self._stream.device))


def _layout_of(request: BatchRequest) -> tuple[Any, ...]:
    leaves, spec = tree_flatten((request.extras, request.excluded))
    kinds = [(x.shape, x.dtype) if isinstance(x, Tensor) else x for x in leaves]
    times = {
        name: {t: x.dtype for t, x in of_types.items()} for name, of_types in request.times.items()
    }
    return spec, kinds, times


def _number(value: int) -> Tensor:
    return torch.tensor([value], dtype=torch.int64, device="cpu")


def _can_overlap_replays() -> bool:
    """Returns whether a CUDA graph may be replayed while one with random numbers runs on another
    stream.

    Before torch 2.9, each replay writes to the memory that all graphs read the state of the
    generator from.
    """
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 9)
