"""The halo of ranks of several machines: a row crosses the network once for each machine."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.halo import (
    Halo,
    HaloPlan,
    check_rows,
    mark_halo,
    number_extended,
)
from peergraph.fullgraph.exchange.side_by_side import Steps, run_alone
from peergraph.fullgraph.exchange.transport import DistributedTransport, Transport
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.memory import Group

_PIECE = 1 << 21  # rows whose importers are found at a time


def make_halo(layout: RowLayout, internal_rows: Tensor) -> tuple[Halo, Tensor]:
    """Returns the plan for rows that this rank needs, and their extended rows. Collective.

    Ranks of one machine have a :class:`HaloPlan`. Those of several have a :class:`MachineHaloPlan`,
    unless :attr:`RowLayout.by_machine` is false.

    Args, returns and raises as :meth:`HaloPlan.steps`.
    """
    return run_alone(layout.group, halo_steps(layout, internal_rows))


def halo_steps(layout: RowLayout, internal_rows: Tensor) -> Steps[tuple[Halo, Tensor]]:
    """Makes what :func:`make_halo` returns; of several machines by collectives of its own."""
    group = layout.processes
    if group.node_group is group or not layout.by_machine:
        return (yield from HaloPlan.steps(layout, internal_rows))
    return MachineHaloPlan.make(layout, internal_rows)


class MachineHaloPlan(Halo):
    """Which rows of other ranks this rank needs, by three exchanges.

    Extended rows are this rank's rows, the rows of other ranks of this machine, the rows of other
    machines that this rank imports, and the rows that other ranks of this machine import. A row of
    another machine is imported by one of the ranks that need it, and passed on to the others.
    Gradients take the same ways back: those of a row are added up in a machine before they cross
    the network.

    Args:
        layout: the rows of all ranks of all machines.
        within: rows of this machine, over its ranks.
        network: rows that ranks import, over all ranks.
        passed_on: rows that other ranks of this machine import, over its ranks.
        halo_rows: see :class:`Halo`.
        is_empty: whether no rank of any machine needs a row of another.
    """

    def __init__(
        self,
        layout: RowLayout,
        within: HaloPlan,
        network: HaloPlan,
        passed_on: HaloPlan,
        halo_rows: Tensor,
        is_empty: bool,
    ) -> None:
        super().__init__(layout, halo_rows)
        self.within = within
        self.network = network
        self.passed_on = passed_on
        self.network_rows = len(network.halo_rows)
        self._is_empty = is_empty

    @classmethod
    def make(cls, layout: RowLayout, internal_rows: Tensor) -> tuple[MachineHaloPlan, Tensor]:
        """See :meth:`HaloPlan.steps`. Collective."""
        group = layout.processes
        rows = internal_rows.to(group.device)
        transport = Transport.of(group)
        assert isinstance(transport, DistributedTransport)
        transport.connect()
        check_rows(layout, rows)
        is_needed = mark_halo(layout, rows)
        within, rows_within = _plan_within(layout, is_needed)
        for rank in group.machines.local_ranks:
            is_needed[layout.rows_of(rank)] = False
        imports = _find_imports(group.node_group, is_needed)
        del is_needed
        network, _ = HaloPlan.make(layout, imports.rows)
        imported = RowLayout(group.node_group, imports.counts, imports.rows)
        passed_on, _ = HaloPlan.make(imported, imports.passed_on)
        halo_rows = torch.cat([rows_within, imports.rows, imports.rows_passed_on])
        is_empty = network.is_empty and all(group.all_gather(within.is_empty))
        plan = cls(layout, within, network, passed_on, halo_rows, is_empty)
        return plan, number_extended(layout, halo_rows).index_select(0, rows)

    @property
    def is_empty(self) -> bool:
        """See :attr:`Halo.is_empty`; of all machines."""
        return self._is_empty

    @property
    def num_of_machine(self) -> int:
        """Extended rows of ranks of this machine, which come first."""
        return self.within.num_extended

    def gather(self, x: Tensor) -> Tensor:
        """See :meth:`Halo.gather`. Rows of this machine travel while those of others do."""
        if self.is_empty:
            return x
        extended = x.new_empty(self.num_extended, *x.shape[1:])
        of_machine, of_others = self._split(extended)
        of_machine[: self.num_local].copy_(x)
        pending = self.network.start_halo(x, of_others[: self.passed_on.num_local])
        self.within.fill_halo(of_machine)
        pending.wait()
        self.passed_on.fill_halo(of_others)
        return extended

    def add_to_owners(self, extended: Tensor) -> Tensor:
        """See :meth:`Halo.add_to_owners`; ranks of this machine are added before the others."""
        if self.is_empty:
            return extended
        of_machine, of_others = self._split(extended)
        imported = self.passed_on.add_to_owners(of_others)
        pending, received = self.network.start_return(imported.contiguous())
        out = self.within.add_to_owners(of_machine)
        if out is of_machine:
            out = of_machine.clone(memory_format=torch.contiguous_format)
        pending.wait()
        self.network.add_returned(out, received)
        return out

    def _split(self, extended: Tensor) -> tuple[Tensor, Tensor]:
        """Splits extended rows into those of this machine and those of other machines."""
        return extended[: self.num_of_machine], extended[self.num_of_machine :]

    def __repr__(self) -> str:
        return (
            f"MachineHaloPlan(rank {self.row_layout.group.rank}, {self.num_local} local rows, "
            f"{self.num_of_machine - self.num_local} rows of this machine, "
            f"{self.passed_on.num_local} imported rows, "
            f"{self.num_extended - self.num_of_machine - self.passed_on.num_local} passed on)"
        )


class _Imports(NamedTuple):
    """The rows of other machines that the ranks of this machine import.

    Args:
        rows: [imported by this rank] int64 internal rows, ascending.
        counts: rows that each rank of this machine imports.
        passed_on: [needed here and imported by others] int64 numbers of the rows among those that
            ranks of this machine import, in order of the ranks; ascending.
        rows_passed_on: [the same] int64 internal rows of these.
    """

    rows: Tensor
    counts: tuple[int, ...]
    passed_on: Tensor
    rows_passed_on: Tensor


def _find_imports(group: Group, is_needed: Tensor) -> _Imports:
    """Chooses for each row of other machines one of the ranks that need it. Collective.

    Args:
        group: the ranks of this machine.
        is_needed: [rows of all machines] whether this rank needs a row of another machine.
    """
    transport, device = Transport.of(group), is_needed.device
    ranks = range(group.world_size)
    rows, imported_by_piece = list[Tensor](), list[Tensor]()
    totals = torch.zeros(group.world_size, dtype=torch.int64, device=device)
    for start in range(0, len(is_needed), _PIECE):
        mine = is_needed[start : start + _PIECE]
        by_rank = transport.all_gather_rows(mine.unsqueeze(0), [1] * group.world_size)
        before = by_rank.cumsum(0) - 1
        # Of the ranks that need a row, each imports about as many as the others.
        numbers = torch.arange(start, start + len(mine), device=device)
        turn = numbers % (before[-1] + 1).clamp(min=1)
        imports = by_rank & (before == turn)
        rows.append(numbers[imports[group.rank]])
        after = imports.cumsum(1) + totals.unsqueeze(1)
        chosen = imports.byte().argmax(0)
        is_passed_on = mine & ~imports[group.rank]
        imported = numbers[is_passed_on]
        importer = chosen[is_passed_on]
        place = after[importer, imported - start] - 1
        imported_by_piece.append(torch.stack([importer, place, imported]))
        totals = after[:, -1]
    none = torch.empty(0, dtype=torch.int64, device=device)
    counts = tuple(totals.tolist())
    offsets = torch.tensor([sum(counts[:rank]) for rank in ranks], device=device)
    importer, place, imported = (
        torch.cat(imported_by_piece, 1) if imported_by_piece else none.expand(3, 0)
    )
    passed_on, order = torch.sort(offsets[importer] + place)
    return _Imports(torch.cat(rows) if rows else none, counts, passed_on, imported[order])


def _plan_within(layout: RowLayout, is_needed: Tensor) -> tuple[HaloPlan, Tensor]:
    """Returns the plan for rows of this machine, and the internal rows of its halo. Collective over
    the machine.
    """
    group = layout.processes
    ranks = group.machines.local_ranks
    of_machine = RowLayout(group.node_group, [layout.counts[r] for r in ranks], layout.positions)
    needed_rows = [is_needed[layout.rows_of(rank)].nonzero().squeeze(1) for rank in ranks]
    offsets = zip(needed_rows, of_machine.offsets, strict=True)
    plan, _ = HaloPlan.make(of_machine, torch.cat([rows + offset for rows, offset in offsets]))
    starts = zip(needed_rows, ranks, strict=True)
    return plan, torch.cat([rows + layout.offsets[rank] for rows, rank in starts])
