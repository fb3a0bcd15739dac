"""A chunk of rows as a rank, so that rules of partitioned tensors compute on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.transport import ReduceOp, Reductions
from peergraph.fullgraph.layout.ranks import Ranks
from peergraph.fullgraph.random.seeds import Seed, draw_seeds_by, shared_seed
from peergraph.memory import Group

Reduce = Callable[[Tensor, ReduceOp], Tensor]


class NeedsOtherRowsError(NotImplementedError):
    """A function on the rows of a chunk asked for a collective: it needs the rows of others."""


class VirtualRank(Ranks):
    """The ranks of a chunk: rank 0 of two, of which the other has all other rows.

    It refuses collectives with NeedsOtherRowsError, but for reductions within :meth:`reducing`.
    Seeds of random operations are drawn as the real ranks draw them, or taken from a recording.
    """

    rank, world_size = 0, 2
    one_part_a_rank = False

    def __init__(self, group: Group) -> None:
        self.real = group
        """The ranks."""
        self.device = group.device
        self.shared = {Reductions: self}
        self._reduce: Reduce | None = None
        self._drawn: list[Seed] | None = []
        self._recorded_seeds: Iterator[Seed] = iter(())
        draw_seeds_by(self, self._draw)

    @contextmanager
    def reducing(self, reduce: Reduce) -> Iterator[None]:
        """Within the context, reductions call `reduce`."""
        before, self._reduce = self._reduce, reduce
        try:
            yield
        finally:
            self._reduce = before

    @contextmanager
    def with_reductions(self, reductions: Sequence[Tensor]) -> Iterator[None]:
        """Within the context, the first reductions have known results; later ones are as before.

        Args:
            reductions: results, in the order in which the reductions are asked for.
        """
        later, results = self._reduce, iter(reductions)

        def reduce(tensor: Tensor, op: ReduceOp) -> Tensor:
            reduction = next(results, None)
            if reduction is not None:
                return reduction.clone()
            if later is None:
                refuse_other_rows()
            return later(tensor, op)

        with self.reducing(reduce):
            yield

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Tensor:
        """Returns what the function of :meth:`reducing` makes of a tensor."""
        if self._reduce is None:
            refuse_other_rows()
        return self._reduce(tensor, op)

    @contextmanager
    def recording_seeds(self, seeds: Sequence[Seed] = ()) -> Iterator[list[Seed]]:
        """Within the context, seeds are drawn for all ranks; gives the list of them.

        Args:
            seeds: the first seeds, which are not drawn again.
        """
        drawn = list(seeds)
        with self._seeds(seeds, drawn):
            yield drawn

    @contextmanager
    def replaying(self, seeds: Sequence[Seed]) -> Iterator[None]:
        """Within the context, random operations get these seeds."""
        with self._seeds(seeds, None):
            yield

    @contextmanager
    def _seeds(self, seeds: Sequence[Seed], drawn: list[Seed] | None) -> Iterator[None]:
        before = self._recorded_seeds, self._drawn
        self._recorded_seeds, self._drawn = iter(seeds), drawn
        try:
            yield
        finally:
            self._recorded_seeds, self._drawn = before

    def _draw(self, generator: torch.Generator | None) -> Seed:
        recorded = next(self._recorded_seeds, None)
        if recorded is not None:
            return recorded
        if self._drawn is None:
            raise RuntimeError("a recorded function draws more random numbers than at its record")
        seed = shared_seed(self.real, generator)
        self._drawn.append(seed)
        return seed

    def all_gather(self, value: Any) -> NoReturn:
        """Raises NeedsOtherRowsError, as :meth:`broadcast` does."""
        refuse_other_rows()

    def broadcast(self, value: Any, src: int = 0) -> NoReturn:
        """Raises NeedsOtherRowsError."""
        refuse_other_rows()

    def collective(self, name: str) -> AbstractContextManager[None]:
        """Returns a context without effect."""
        return nullcontext()


def refuse_other_rows() -> NoReturn:
    """Raises NeedsOtherRowsError."""
    raise NeedsOtherRowsError("the function needs rows of other chunks or ranks")


def partial_sum(tensor: Tensor, op: ReduceOp) -> Tensor:
    """The reduction in a backward pass over a chunk: the chunk's part of a parameter's gradient.

    The parts are added up over chunks and ranks afterwards.
    """
    if op != "sum" or not (tensor.is_floating_point() or tensor.is_complex()):
        refuse_other_rows()
    return tensor


def no_number(tensor: Tensor, op: ReduceOp) -> Tensor:
    """The reduction in a dry run: NaN, which shows where results of reductions are used."""
    number = complex("nan+nanj") if tensor.is_complex() else float("nan")
    return torch.full_like(partial_sum(tensor, op), number)
