"""Initial values of embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peergraph.memory import Table
from peergraph.memory.group.collective_call import collective_call, collective_call_machines
from peergraph.memory.group.machine_broadcast import MachineBroadcast
from peergraph.memory.training.coalesce import accumulator
from peergraph.progress import progress_bar
from peergraph.store.build.machine_source import Sending
from peergraph.store.input.source import RowSource

Init = Tensor | RowSource | Callable[[Tensor], Any] | None
"""A tensor or a source of all rows, a function that fills a tensor in place, or None: standard
normal. Every rank of every machine passes a source, or none does.
"""

# The size of a piece is fixed, so that random numbers do not depend on the number of ranks.
_PIECE_ELEMENTS = 4 << 20
_PIECE_BYTES = 64 << 20  # of rows that are read


def write_initial(table: Table, init: Init, label: str) -> None:
    """Fills a table [rows, width] on each machine. Collective over all machines.

    Args:
        table: the table.
        init: a tensor on one rank, or the same tensor on several ranks; otherwise each rank passes
            the same kind of value.
        label: the label of the progress bar.
    """
    group = table.group
    collective_call_machines(group, lambda: _check(table, init))
    sending = Sending.find(isinstance(init, Tensor), group)
    if sending is not None:
        with sending.connect(group) as link:
            init = collective_call(
                group, lambda: init if link is None else _send(table, init, link)
            )
    holders = group.all_gather(isinstance(init, (Tensor, RowSource)))
    if isinstance(init, Tensor):
        load_share(table, init, sum(holders[: group.rank]), sum(holders))
    elif isinstance(init, RowSource):
        load_share(table, init, group.rank, group.world_size)
    elif not any(holders):
        _draw(table, torch.nn.init.normal_ if init is None else init, label)
    group.barrier()


def _check(table: Table, init: Init) -> None:
    if isinstance(init, (Tensor, RowSource)):
        if init.shape != table.shape:
            raise ValueError(f"init must have shape {table.shape}, got {tuple(init.shape)}")
    elif init is not None and not callable(init):
        raise TypeError(f"init must be a tensor, a function or None, got {init!r}")


def _send(table: Table, init: Init, link: MachineBroadcast) -> Tensor:
    """Sends the rows to machines without the tensor, or receives them."""

    def rows() -> Tensor:
        assert isinstance(init, Tensor)
        return init.detach().to(table.dtype)

    return link.tensor(rows, table.shape, table.dtype)


def load_share(table: Table, rows: Tensor | RowSource, place: int, count: int) -> None:
    """Writes share `place` of `count` of the rows. Collective for a source, whose errors every rank
    raises.
    """
    begin, end = (table.rows * p // count for p in (place, place + 1))
    if isinstance(rows, Tensor):
        table.load(rows[begin:end].detach().to(table.dtype), begin)
        return
    step = max(1, _PIECE_BYTES // max(1, table.row_bytes))

    def load() -> None:
        for at in range(begin, end, step):
            table.load(rows.rows(at, min(at + step, end)), at)

    collective_call(table.group, load)


def _draw(table: Table, fill: Callable[[Tensor], Any], label: str) -> None:
    """Draws pieces of rows, assigned to the ranks in turn. Each piece has its own seed."""
    group = table.group
    drawn = int(torch.randint(2**62, (), device="cpu")) if group.rank == 0 else None
    first_seed = group.all_gather_machines(drawn)[0]
    # A function may fail on one rank.
    collective_call(group, lambda: _draw_share(table, fill, first_seed, label))


def _draw_share(table: Table, fill: Callable[[Tensor], Any], first_seed: int, label: str) -> None:
    group = table.group
    step = max(1, _PIECE_ELEMENTS // max(1, table.shape[1]))
    starts = range(0, table.rows, step)[group.rank :: group.world_size]
    with (
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
        progress_bar(label, len(starts) * step * table.row_bytes, None) as moved,
    ):
        for begin in starts:
            torch.default_generator.manual_seed(first_seed + begin // step)
            shape = (min(step, table.rows - begin), table.shape[1])
            piece = torch.empty(shape, dtype=accumulator(table.dtype), device="cpu")
            _check_filled(label, fill(piece), piece, shape)
            table.load(piece.to(table.dtype), begin, progress=False)
            moved(step * table.row_bytes)


def _check_filled(label: str, returned: Any, piece: Tensor, shape: tuple[int, int]) -> None:
    """Raises ValueError if a function returned another tensor or resized its argument."""
    if tuple(piece.shape) != shape:
        raise ValueError(
            f"{label}: init must fill {list(shape)} in place, it left {list(piece.shape)}"
        )
    if isinstance(returned, Tensor) and returned.data_ptr() != piece.data_ptr():
        raise ValueError(
            f"{label}: init must fill its argument in place, it returned another tensor"
        )
