"""Seeds of random operations, equal on all ranks."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from peergraph.fullgraph.layout.ranks import Ranks
from peergraph.fullgraph.random.step_seeds import current_step
from peergraph.sampling import next_seed

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
