"""Seeds in device memory, for a step that runs as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Draw = Callable[[], int]


class StepSeeds:
    """The seeds of one step's random operations, in the order of its draws.

    The kernels of a captured step read seed k from element k of a tensor. Before each replay,
    :meth:`draw_again` draws the seeds from the generators that the step would have drawn from, so
    that a captured step has the random numbers of a step that is run.

    Args:
        device: the GPU of the step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.values: Tensor | None = None
        """[draws of a step] int64 on the device; None before the capture."""
        self._draws: list[Draw] = []
        self._count = 0

    @contextmanager
    def count_draws(self) -> Iterator[None]:
        """Counts the draws of a step that runs within this; it draws as ever."""
        self._count = 0
        with _active(self):
            yield

    @contextmanager
    def capture_draws(self) -> Iterator[None]:
        """Within this, a draw gives the place of a seed; as many as were counted."""
        self._draws = []
        self.values = torch.zeros(self._count, dtype=torch.int64, device=self._device)
        with _active(self):
            yield

    def take(self, draw: Draw) -> int | Tensor:
        """Returns the seed of the next random operation of the step."""
        if self.values is None:
            self._count += 1
            return draw()
        if torch._C._current_graph_task_id() != -1:
            raise RuntimeError(
                "a random operation runs in the backward pass, as torch.utils.checkpoint makes it: "
                "its seed is that of the forward pass, which is not drawn again"
            )
        place = len(self._draws)
        if place >= len(self.values):
            raise RuntimeError(
                f"the step has more random operations than the {self._count} of the one before"
            )
        self._draws.append(draw)
        return self.values[place : place + 1]

    def draw_again(self) -> None:
        """Writes the seeds of the next replay, in the order of the current stream."""
        if self._draws and self.values is not None:
            pinned = self._device.type == "cuda"
            drawn = torch.tensor([draw() for draw in self._draws], device="cpu", pin_memory=pinned)
            self.values[: len(drawn)].copy_(drawn, non_blocking=True)


_current: StepSeeds | None = None


def current_step() -> StepSeeds | None:
    """Returns the step that counts or captures draws, of this thread or another, or None."""
    return _current


@contextmanager
def _active(step: StepSeeds) -> Iterator[None]:
    global _current
    if _current is not None:
        raise RuntimeError("a step is captured while another one is")
    _current = step
    try:
        yield
    finally:
        _current = None
