"""torch's default generator of a loop whose batches are drawn ahead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from peergraph.sampling import next_seed


class LoopRng:
    """Lets the loop's random numbers follow those of its batches, as if it had made them itself."""

    def __init__(self) -> None:
        self._state: Tensor | None = torch.get_rng_state()

    def follow(self, state: Tensor | None) -> int | None:
        """Sets torch's CPU generator to the state in which making a batch would have left it.

        If the loop itself has drawn from the generator, the generator stays the loop's from then
        on, and this returns a seed for later batches.

        Args:
            state: of the generator of batches after this one; None: it is determined by the batch.
        """
        if self._state is None or state is None:
            return None
        if torch.equal(torch.get_rng_state(), self._state):
            if not torch.equal(state, self._state):
                torch.set_rng_state(state)
                self._state = state
            return None
        self._state = None
        return next_seed()


class DrawsAhead:
    """The random numbers of batches that the loop's thread draws ahead.

    Attributes:
        state: of torch's CPU generator, for the next batch.
    """

    def __init__(self) -> None:
        self.state = torch.get_rng_state()

    def reseed(self, seed: int) -> None:
        """Draws later batches with a seed."""
        self.state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Returns a context in which torch's CPU generator draws the numbers of a batch."""
        of_loop = torch.get_rng_state()
        torch.set_rng_state(self.state)
        try:
            yield
        finally:
            self.state = torch.get_rng_state()
            torch.set_rng_state(of_loop)
