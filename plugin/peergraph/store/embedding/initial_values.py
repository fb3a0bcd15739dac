"""Initial values of embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peergraph.memory import Table
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.training.coalesce import accumulator
from peergraph.progress import progress_bar

Init = Tensor | Callable[[Tensor], Any] | None
"""A tensor of all rows, a function that fills a tensor in place, or None: standard normal."""

# Fixed, so that random numbers do not depend on the number of ranks.
_PIECE_ELEMENTS = 4 << 20


def write_initial(table: Table, init: Init, what: str) -> None:
    """Fills a table [rows, width]. Collective.

    Args:
        init: a tensor on one rank or the same on all; else each rank passes the same kind.
        what: for the progress bar.
    """
    group = table.group

    def check() -> bool:
        if isinstance(init, Tensor):
            if init.shape != table.shape:
                raise ValueError(f"init must have shape {table.shape}, got {tuple(init.shape)}")
            return True
        if init is not None and not callable(init):
            raise TypeError(f"init must be a tensor, a function or None, got {init!r}")
        return False

    holders = group.all_gather(collective_call(group, check))
    if isinstance(init, Tensor):
        _load_share(table, init, holders)
    elif not any(holders):
        _draw(table, torch.nn.init.normal_ if init is None else init, what)
    group.barrier()


def _load_share(table: Table, rows: Tensor, holders: list[bool]) -> None:
    """Writes this rank's rows of a tensor that some ranks have."""
    place, count = sum(holders[: table.group.rank]), sum(holders)
    begin, end = (table.rows * p // count for p in (place, place + 1))
    table.load(rows[begin:end].detach().to(table.dtype), begin)


def _draw(table: Table, fill: Callable[[Tensor], Any], what: str) -> None:
    """Draws pieces of rows, dealt to the ranks in turn; each piece has its own seed."""
    group = table.group
    first_seed = group.broadcast(
        int(torch.randint(2**62, (), device="cpu")) if group.rank == 0 else None
    )
    # A function may fail on one rank.
    collective_call(group, lambda: _draw_share(table, fill, first_seed, what))


def _draw_share(table: Table, fill: Callable[[Tensor], Any], first_seed: int, what: str) -> None:
    group = table.group
    step = max(1, _PIECE_ELEMENTS // max(1, table.shape[1]))
    starts = range(0, table.rows, step)[group.rank :: group.world_size]
    with (
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
        progress_bar(what, len(starts) * step * table.row_bytes, None) as moved,
    ):
        for begin in starts:
            torch.default_generator.manual_seed(first_seed + begin // step)
            shape = (min(step, table.rows - begin), table.shape[1])
            piece = torch.empty(shape, dtype=accumulator(table.dtype), device="cpu")
            _check_filled(what, fill(piece), piece, shape)
            table.load(piece.to(table.dtype), begin, progress=False)
            moved(step * table.row_bytes)


def _check_filled(what: str, returned: Any, piece: Tensor, shape: tuple[int, int]) -> None:
    """Raises ValueError if a function returned another tensor or resized its argument."""
    if tuple(piece.shape) != shape:
        raise ValueError(
            f"{what}: init must fill {list(shape)} in place, it left {list(piece.shape)}"
        )
    if isinstance(returned, Tensor) and returned.data_ptr() != piece.data_ptr():
        raise ValueError(
            f"{what}: init must fill its argument in place, it returned another tensor"
        )
