"""Rows of one rank after the other, through two buffers, while this rank multiplies.

MG-GCN 4.3. In stage s, rank r reads rows of rank r + s and sends rows to rank r - s, so that no
rank serves two at once. The rows of the next stages travel while those of one are multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor

from peergraph.fullgraph.exchange.halo import ROWS_OF_OTHERS, SUMS_FOR_OWNERS, HaloPlan
from peergraph.fullgraph.exchange.transport import Pending


class _Stage(NamedTuple):
    """A stage in which rows travel to or from this rank."""

    step: int
    """Ranks between this one and each of the other two."""
    source: int
    """The rank whose rows this rank reads."""
    num_read: int
    """Rows that this rank reads; 0: none."""
    reader: int
    """The rank that reads rows of this rank."""
    num_sent: int
    """Rows that this rank sends; 0: none."""


class BlockStages:
    """The stages of the exchange of a plan's rows.

    Args:
        plan: which rows ranks need of each other.
        mode: ``halo``: the distinct rows that a rank needs, which their owner packs; ``blocks``:
            all rows of each rank of which another needs some.
    """

    def __init__(self, plan: HaloPlan, mode: str) -> None:
        if mode not in ("halo", "blocks"):
            raise ValueError(f"mode must be 'halo' or 'blocks', got {mode!r}")
        self.plan = plan
        self.mode = mode
        self._sent = plan.route.sent_by_rank
        layout = plan.row_layout
        rank, world_size = layout.group.rank, layout.group.world_size
        # Where rows go that this rank sends: a slot of each rank for each of its stages in turn.
        self._slots = {}
        for peer in range(world_size):
            number = 0
            for step in range(1, world_size):
                self._slots[peer, step] = number % 2
                number += self._has_stage(peer, step)
        self._stages = []
        for step in range(1, world_size):
            source, reader = (rank + step) % world_size, (rank - step) % world_size
            if self._has_stage(rank, step):
                num_read = self.rows_between(rank, source)
                num_sent = self.rows_between(reader, rank)
                self._stages.append(_Stage(step, source, num_read, reader, num_sent))
        ranks = range(world_size)
        pairs = [(reader, source) for reader in ranks for source in ranks if reader != source]
        self._most_rows = max((self.rows_between(*pair) for pair in pairs), default=0)

    def rows_between(self, reader: int, source: int) -> int:
        """Returns how many rows of rank `source` travel to rank `reader`."""
        count = self.plan.demand[reader][source]
        return self.plan.row_layout.counts[source] if count and self.mode == "blocks" else count

    def _has_stage(self, rank: int, step: int) -> bool:
        world_size = self.plan.row_layout.group.world_size
        source, reader = (rank + step) % world_size, (rank - step) % world_size
        return bool(self.rows_between(rank, source) or self.rows_between(reader, rank))

    def _reserve(self, like: Tensor) -> list[Tensor] | None:
        """Memory of two stages to which other ranks copy rows such as those of `like`."""
        row_bytes = like.shape[1:].numel() * like.itemsize
        most = self._most_rows * row_bytes
        return self.plan.transport.reserve(most) if most else None

    def _start(
        self,
        output: tuple[int, Tensor],
        input_rows: tuple[int, Tensor],
        step: int,
        in_slots: bool,
        selected: Tensor | None = None,
    ) -> Pending:
        """Starts the exchange of a stage: the rank and rows of the output and of the input.

        Of the input those rows are sent that are `selected`, or all.
        """
        outputs, inputs = dict([output]), dict([input_rows])
        reader, rows = input_rows
        if not in_slots:
            if selected is not None:
                inputs = {reader: rows.index_select(0, selected)}
            return self.plan.transport.start(outputs, inputs)
        slots = {reader: self._slots[reader, step]}
        by_reader = None if selected is None else {reader: selected}
        return self.plan.transport.start(outputs, inputs, slots, by_reader)

    @property
    def max_rows(self) -> int:
        """Rows of the largest buffer; :meth:`gather` holds two such buffers."""
        return max((stage.num_read for stage in self._stages), default=0)

    def gather(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yields each rank whose rows this rank reads, and the rows; own rows first. Collective.

        Rows are valid until the caller asks for the next. All must be taken. On a GPU the caller
        reads them on the current stream.

        Args:
            x: [local rows, *features], contiguous, which must not change meanwhile.
        """
        plan = self.plan
        plan.transport.announce(ROWS_OF_OTHERS, x)
        slots = self._reserve(x)
        buffers = _buffers(slots, x, self.max_rows, len(self._stages))

        def start(index: int) -> tuple[Pending, Tensor]:
            stage = self._stages[index]
            rows = buffers[index % 2][: stage.num_read]
            output, input_rows = (
                (stage.source, rows),
                (stage.reader, x if stage.num_sent else x[:0]),
            )
            selected = None
            if stage.num_sent and self.mode == "halo":
                selected = self._sent[stage.reader]
            return self._start(output, input_rows, stage.step, slots is not None, selected), rows

        running = {index: start(index) for index in range(len(buffers))}
        yield plan.row_layout.group.rank, x
        for index, stage in enumerate(self._stages):
            pending, rows = running.pop(index)
            pending.wait()
            if stage.num_read:
                yield stage.source, rows
            if index + 2 < len(self._stages):
                running[index + 2] = start(index + 2)

    def add_to_owners(
        self,
        like: Tensor,
        make_own: Callable[[], Tensor],
        make_partial: Callable[[int], Tensor],
    ) -> Tensor:
        """Returns sums of the partial sums that all ranks have of this rank's rows. Collective.

        The transpose of :meth:`gather`. Partial sums of one stage travel while those of the next
        are computed. They are added in the order of stages, so that two runs are equal bit for bit.

        Args:
            like: a tensor [any, *features] of the dtype and features of the sums.
            make_own: returns this rank's sums of its rows [local rows, *features], to be
                overwritten.
            make_partial: returns this rank's sums of the rows of another rank that it reads
                [rows, *features], contiguous.
        """
        self.plan.transport.announce(SUMS_FOR_OWNERS, like)
        slots = self._reserve(like)
        most = max((stage.num_sent for stage in self._stages), default=0)
        buffers = None if slots is None else _buffers(slots, like, most, len(self._stages))
        out: Tensor | None = None
        running: tuple[Pending, _Stage, Tensor] | None = None
        for index, stage in enumerate(self._stages):
            sent = make_partial(stage.source) if stage.num_read else like[:0]
            if running is not None and out is not None:
                self._finish(out, *running)
            if buffers is None:
                received = like.new_empty(stage.num_sent, *like.shape[1:])
            else:
                received = buffers[index % 2][: stage.num_sent]
            output, input_rows = (stage.reader, received), (stage.source, sent)
            pending = self._start(output, input_rows, stage.step, slots is not None)
            running = pending, stage, received
            if out is None:
                out = make_own()
        if out is None:
            return make_own()
        if running is not None:
            self._finish(out, *running)
        return out

    def _finish(self, out: Tensor, pending: Pending, stage: _Stage, received: Tensor) -> None:
        pending.wait()
        if not stage.num_sent:
            return
        if self.mode == "blocks":
            out.add_(received)
        else:
            out.index_add_(0, self._sent[stage.reader], received)

    def __repr__(self) -> str:
        return f"BlockStages({self.mode}, {len(self._stages)} stages, {self.max_rows} rows)"


def _buffers(slots: list[Tensor] | None, like: Tensor, rows: int, stages: int) -> list[Tensor]:
    """Returns memory for rows such as those of `like`, for at most two stages."""
    if slots is None:
        return [like.new_empty(rows, *like.shape[1:]) for _ in range(min(2, stages))]
    num_bytes = rows * like.shape[1:].numel() * like.itemsize
    used = slots[:stages]
    return [slot[:num_bytes].view(like.dtype).view(rows, *like.shape[1:]) for slot in used]
