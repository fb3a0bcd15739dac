"""A training step that runs as one CUDA graph: one launch in place of one for each kernel.

For graphs of which the host queues kernels more slowly than a GPU runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from peergraph.fullgraph.layout.content_digest import ChangeDetector, are_unchanged, watch
from peergraph.fullgraph.random.seeds import StepSeeds
from peergraph.memory import Group, record_cuda_graph
from peergraph.number_arguments import check_number

_Result = TypeVar("_Result")

# What is made at the first uses of features and masks, is kept from the second on.
_MIN_WARMUP = 2


def capture(
    step: Callable[[], _Result],
    *,
    warmup: int = 3,
    device: Any = None,
    group: Group | None = None,
) -> CapturedStep[_Result]:
    """Returns a function that does what `step` does, on a GPU as a CUDA graph.

    Each call is one step. The first `warmup` calls run `step`; the next one captures its kernels;
    all later ones replay them. Random operations on partitioned tensors have the numbers of steps
    that are not captured: seeds are drawn for each replay. On CPUs every call runs `step`.

    A replay repeats kernels, not Python: numbers that `step` computes on the host are those of the
    captured call. A learning rate that changes must be a tensor on the GPU. Tensors that the step
    reads must stay where they are: write new values into them. Masks and ids by which the step
    selects rows, and features of which sums are kept, are read before each replay; after a change
    the step runs and is captured anew.

    Args:
        step: called without arguments; such as zero_grad, forward, loss, backward and
            ``optimizer.step()``, with an optimizer that has ``capturable=True``.
        warmup: calls before the capture, at least 2; optimizers and libraries make their state.
        device, group: those of :func:`full_graph <peergraph_pyg.full_graph>`; None: the group of
            ``Group.current(device)``.

    Returns:
        A function without arguments. Tensors in its result are copies without autograd's history.
        It waits for the GPU once where the step selects rows or uses kept sums, to tell whether
        masks, ids and features are what they were at the capture.

    Raises:
        ValueError: `warmup` is less than 2.
        NotImplementedError: several GPUs. Their exchanges count on the host.
        RuntimeError: when the graph is captured: the step does what a CUDA graph cannot repeat.
    """
    check_number("warmup", warmup, _MIN_WARMUP)
    group = Group.current(device) if group is None else group
    if group.world_size > 1 and group.device.type == "cuda":
        raise NotImplementedError(
            f"capture on {group.world_size} GPUs: exchanges of rows are counted on the host; call "
            "the step itself, or train on one GPU"
        )
    return CapturedStep(step, warmup, group.device)


class CapturedStep(Generic[_Result]):
    """A step, and the CUDA graph of its kernels: made by :func:`capture`."""

    def __init__(self, step: Callable[[], _Result], warmup: int, device: torch.device) -> None:
        self._step = step
        self._warmup = warmup
        self._device = device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Any = None
        self._watched: list[tuple[Tensor, bytes]] = []
        self._detector: ChangeDetector | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._seeds = StepSeeds(device)

    def __call__(self) -> _Result:
        """Does one step."""
        if self._device.type != "cuda":
            result: _Result = tree_map(_detached, self._step())
            return result
        with torch.cuda.device(self._device):
            if self._graph is not None and self._has_changed():
                self._graph, self._detector, self._warmup = None, None, _MIN_WARMUP
                self._seeds = StepSeeds(self._device)
            if self._graph is not None:
                self._seeds.draw_again()
                self._graph.replay()
            elif self._warmup > 0:
                self._warmup -= 1
                return self._run()
            else:
                self._graph = self._capture()
                return self()
            copied: _Result = tree_map(_copied, self._result)
            return copied

    @property
    def is_captured(self) -> bool:
        """Whether calls replay a CUDA graph."""
        return self._graph is not None

    def _has_changed(self) -> bool:
        """Returns whether a tensor that selects rows or is summed is not what it was."""
        if self._detector is not None:
            return self._detector.has_changed()
        if not are_unchanged(self._watched):  # since the call before the capture
            return True
        tensors = list({id(tensor): tensor for tensor, _ in self._watched}.values())
        if tensors:
            self._detector = ChangeDetector(tensors, self._stream)
        return False

    def _run(self) -> _Result:
        """Runs the step on the stream that the capture will use."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream), self._seeds.count_draws():
            result = self._step()
        current.wait_stream(self._stream)
        copied: _Result = tree_map(_copied, result)
        return copied

    def _capture(self) -> torch.cuda.CUDAGraph:
        with self._seeds.capture_draws(), watch() as self._watched:
            graph, result = record_cuda_graph(self._step, self._stream)
        self._result = tree_map(_detached, result)
        return graph


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
