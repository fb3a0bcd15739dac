"""Seeds of random operations, equal on all ranks."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from peergraph.fullgraph.layout.ranks import Ranks
from peergraph.sampling import next_seed

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
        """Counts the random draws of the step that runs within the context, and changes none."""
        self._count = 0
        with _active(self):
            yield

    @contextmanager
    def capture_draws(self) -> Iterator[None]:
        """Gives each draw within the context the place of its seed: as many as were counted."""
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


Seed = int | Tensor
"""A number, or a tensor [1] int64 on the device while a CUDA graph is captured."""

_Draw = Callable[[torch.Generator | None], Seed]

# The seed of each generator when the ranks compared it. The generators are kept: another one at the
# address of one that is gone would be taken for it, and not on all ranks.
_checked: WeakKeyDictionary[Ranks, dict[torch.Generator, int]] = WeakKeyDictionary()
_MOST_KEPT = 64


def draw_seeds_by(group: Ranks, draw: _Draw) -> None:
    """From now on the seeds of a group are what `draw` returns for the generator or None."""
    group.shared[draw_seeds_by] = draw


def shared_seed(group: Ranks | None, generator: torch.Generator | None = None) -> Seed:
    """Draws a seed for one random operation from a generator that all ranks have in the same state.

    The first draw of a group from a generator, and the first one after the generator was seeded
    again, is collective: it compares the generator's state between ranks. If states differ, all
    ranks take rank 0's, with a warning. Runs on the CPU; does not synchronise the GPU otherwise.

    Args:
        group: the ranks; None for a plain tensor of one process.
        generator: of the CPU; None: torch's default generator of the CPU.

    Returns:
        A number; while a CUDA graph is captured, a tensor that holds one at each replay.

    Raises:
        NotImplementedError: a generator of a GPU.
    """
    if generator is not None and generator.device.type != "cpu":
        raise NotImplementedError(
            f"generator must be of the CPU for partitioned tensors, got one of {generator.device}"
        )
    if group is not None and draw_seeds_by in group.shared:
        drawn: Seed = group.shared[draw_seeds_by](generator)
        return drawn
    source = torch.default_generator if generator is None else generator
    step = current_step()
    return _draw(group, source) if step is None else step.take(lambda: _draw(group, source))


def _draw(group: Ranks | None, source: torch.Generator) -> int:
    if group is not None and group.world_size > 1:
        checked = _checked.setdefault(group, {})
        if checked.get(source) != source.initial_seed():
            _agree(group, source)
            checked[source] = source.initial_seed()
            if len(checked) > _MOST_KEPT:
                del checked[next(iter(checked))]
    return next_seed(source)


def _agree(group: Ranks, generator: torch.Generator) -> None:
    """Gives all ranks rank 0's state of `generator`; of the default one on the GPU, too."""
    states = [generator.get_state()]
    has_gpu = group.device.type == "cuda" and generator is torch.default_generator
    if has_gpu:
        states.append(torch.cuda.get_rng_state(group.device))
    digest = hashlib.blake2b(b"".join(state.numpy().tobytes() for state in states)).digest()
    if len(set(group.all_gather(digest))) == 1:
        return
    if group.rank == 0:
        warnings.warn(
            "the random generators of the ranks differ, so rank 0's is taken on all ranks; call "
            "torch.manual_seed with the same seed on every rank",
            stacklevel=3,
        )
    states = group.broadcast(states)
    generator.set_state(states[0])
    if has_gpu:
        torch.cuda.set_rng_state(states[1], group.device)
