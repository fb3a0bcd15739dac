"""Source rows of a batch, and their gradients, cross the network once for each machine.

Of the ranks of a machine that need a row of another machine in a batch, one exchanges the row with
its owner: the importer. It passes the row on to the others, and adds up their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.halo import HaloPlan
from peergraph.fullgraph.exchange.route import Route
from peergraph.fullgraph.exchange.transport import Transport, split_rows


@dataclass
class ExchangedRows:
    """The rows that a rank exchanges in a batch, ascending by internal row.

    Args:
        rows: [n] internal rows of other ranks.
        positions: [n] their positions in this rank's window.
        own_rows: for each rank, local rows of this rank that it needs.
        own_positions: for each rank, their positions in this rank's window.
    """

    rows: Tensor
    positions: Tensor
    own_rows: list[Tensor]
    own_positions: list[Tensor]


def merge_batches(plan: HaloPlan, batches: Sequence[ExchangedRows]) -> list[list[Route]]:
    """Chooses an importer for each row of another machine. Collective; synchronises.

    Args:
        plan: of the exchange between all ranks of all machines.
        batches: as many on all ranks.

    Returns:
        For each batch, of rows of this rank's window, the route from owners to importers, and then
        the one from these to the other ranks of their machine.
    """
    group = plan.row_layout.processes
    machines, ranks, offsets = group.machines, range(group.world_size), plan.row_layout.offsets
    device = plan.halo_rows.device
    machine_of = torch.tensor([machines.machine_of(rank) for rank in ranks], device=device)
    owners = [plan.row_layout.owners_of(batch.rows)[0] for batch in batches]
    is_far = [machine_of[owner] != machines.index for owner in owners]
    far = [batch.rows.long()[mask] for batch, mask in zip(batches, is_far, strict=True)]
    of_machine = _gather_within(plan, far)
    routes = []
    for number, batch in enumerate(batches):
        local = machines.local_ranks
        lists = [of_machine[rank][number] for rank in local]
        chosen = dict(zip(local, choose_importers(lists, local), strict=True))
        mine = chosen[group.rank]
        far_positions = batch.positions[is_far[number]]
        imports = ~is_far[number]
        imports[is_far[number]] = mine == group.rank
        none = batch.positions[:0]
        passed_on, stored = [none] * len(ranks), [none] * len(ranks)
        for rank, rows in zip(local, lists, strict=True):
            if rank != group.rank:
                stored[rank] = far_positions[mine == rank]
                imported = rows[chosen[rank] == group.rank]
                passed_on[rank] = far_positions[torch.searchsorted(far[number], imported)]
        own = list(batch.own_positions)
        for machine, others in enumerate(machines.ranks):
            if machine == machines.index:
                continue
            requests = [batch.own_rows[rank].long() + offsets[group.rank] for rank in others]
            for rank, importers in zip(others, choose_importers(requests, others), strict=True):
                own[rank] = own[rank][importers == rank]
        counts = owners[number][imports].bincount(minlength=len(ranks)).tolist()
        routes.append(
            [
                Route.of_lists(plan.transport, own, counts, batch.positions[imports]),
                Route.of_lists(
                    plan.transport, passed_on, list(map(len, stored)), torch.cat(stored)
                ),
            ]
        )
    return routes


def choose_importers(lists: Sequence[Tensor], ranks: Sequence[int]) -> list[Tensor]:
    """Returns the importer of each row in each list: of the ranks that have the row, each imports
    about as many as the others.

    Args:
        lists: of ranks of one machine, distinct internal rows, int64.
        ranks: whose lists they are.
    """
    rows = torch.cat(list(lists))
    sizes = [len(some) for some in lists]
    if not len(rows):
        return [rows] * len(lists)
    distinct, inverse, counts = torch.unique(rows, return_inverse=True, return_counts=True)
    # Places in `rows` by row, for each row in the order of the lists.
    places = torch.argsort(inverse, stable=True)
    chosen = places[counts.cumsum(0) - counts + distinct % counts]
    of_list = torch.tensor(list(ranks), device=rows.device).repeat_interleave(
        torch.tensor(sizes, device=rows.device)
    )
    return list(torch.split(of_list[chosen][inverse], sizes))


def _gather_within(plan: HaloPlan, batches: list[Tensor]) -> dict[int, list[Tensor]]:
    """Returns the rows of each rank of this machine, by batch. Collective over the machine."""
    group = plan.row_layout.processes
    node, ranks = group.node_group, group.machines.local_ranks
    sizes = node.all_gather([len(rows) for rows in batches])
    mine = torch.cat(batches) if batches else plan.halo_rows[:0].long()
    counts = list(map(sum, sizes))
    rows = split_rows(Transport.of(node).all_gather_rows(mine, counts), counts)
    return {rank: split_rows(*pair) for rank, *pair in zip(ranks, rows, sizes, strict=True)}
