"""The order in which chunks are visited, by the rows that they share (HongTu 5.3, Algorithm 4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.halo import HaloPlan
from peergraph.fullgraph.offload.chunks.source_transfers import Switches
from peergraph.memory.device.default_machine import GPUS

_SAMPLE_BYTES = 64 << 20  # of the marks of all chunks
_LARGEST_SAMPLE = 1 << 22  # rows; counts are then exact in float32

_PIECE = 1 << 20  # marks that are floats at a time

Orders = tuple[tuple[int, ...], ...]
"""By rank: the chunk of each batch."""


def choose_orders(plan: HaloPlan, sources: Sequence[Tensor], switches: Switches) -> Orders:
    """Returns the chunk of each batch for each rank. Collective unless `plan` is empty.

    All ranks get the same, except for an empty plan, where each has its own order for all.

    Two greedy orders are compared with the given one by the rows that each moves over the links:
    HongTu's, in which first the chunks of a batch and then the following batches share most rows,
    and its second step alone. Of large graphs a sample of the rows is counted.

    Args:
        plan: which rows are exchanged over all batches.
        sources: the distinct extended rows of each of this rank's chunks.
        switches: how rows are moved.
    """
    group, count, alone = plan.row_layout.group, len(sources), plan.is_empty
    natural = (tuple(range(count)),) * group.world_size
    if (count < 3 and alone) or not (switches.reuse_chunks or switches.deduplicate_ranks):
        return natural
    if group.world_size > 1 and plan.is_empty:  # Ranks whose rows are on the device do not come.
        return natural
    marks = _sample_marks(plan, sources)
    chosen = natural
    if alone or group.rank == 0:
        by_step = _follow(marks, natural)
        candidates = [natural, by_step]
        if not alone:
            candidates.append(_follow(marks, _match(marks)))
        owner = _sample_owners(plan, *marks.shape[1:])
        costs = [_cost(marks, owner, orders, switches) for orders in candidates]
        chosen = candidates[costs.index(min(costs))]
    if alone:
        return chosen
    agreed: Orders = group.broadcast(chosen)
    return agreed


def _sample_step(plan: HaloPlan, count: int) -> int:
    """Every so many rows one is counted."""
    chunks = count * plan.row_layout.group.world_size
    rows = min(_LARGEST_SAMPLE, max(1, _SAMPLE_BYTES // chunks))
    return max(1, -(-plan.row_layout.size // rows))


def _sample_marks(plan: HaloPlan, sources: Sequence[Tensor]) -> Tensor:
    """Returns which sampled rows each chunk needs, [ranks, chunks, rows] bool. Collective."""
    layout, device = plan.row_layout, plan.halo_rows.device
    step = _sample_step(plan, len(sources))
    marks = torch.zeros(len(sources), -(-layout.size // step), dtype=torch.uint8, device=device)
    first = layout.offsets[layout.group.rank]
    for of_chunk, rows in zip(marks, sources, strict=True):
        is_own = rows < plan.num_local
        halo = plan.halo_rows[rows[~is_own].long() - plan.num_local]
        for internal in (rows[is_own].long() + first, halo):
            of_chunk[internal[internal % step == 0] // step] = 1
    counts = [len(sources)] * layout.group.world_size
    if plan.is_empty:
        return marks.view(torch.bool).expand(layout.group.world_size, *marks.shape)
    everyone = plan.transport.all_gather_rows(marks, counts)
    return everyone.view(layout.group.world_size, *marks.shape).view(torch.bool)


def _sample_owners(plan: HaloPlan, chunks: int, count: int) -> Tensor:
    """Returns the rank of each sampled row."""
    device, layout = plan.halo_rows.device, plan.row_layout
    rows = torch.arange(count, device=device) * _sample_step(plan, chunks)
    return layout.owners_of(rows)[0]


def _match(marks: Tensor) -> Orders:
    """Puts chunks that share most rows in one batch: ranks take chunks in turn, batch by batch."""
    world_size, count = marks.shape[:2]
    union = marks[0].clone()
    orders = [tuple(range(count))]
    for rank in range(1, world_size):
        shared = union.float() @ marks[rank].float().t()
        order = _take_largest(shared)
        union |= marks[rank][torch.tensor(order, device=marks.device)]
        orders.append(order)
    return tuple(orders)


def _take_largest(shared: Tensor) -> tuple[int, ...]:
    """Returns, row by row, the column of the largest value among those not taken before."""
    values, order = shared.cpu(), []
    for row in values:
        column = int(row.argmax())
        values[:, column] = -1
        order.append(column)
    return tuple(order)


def _follow(marks: Tensor, orders: Orders) -> Orders:
    """Reorders batches: each is followed by the one that shares most rows with it."""
    union = torch.stack(
        [marks[rank][torch.tensor(order, device=marks.device)] for rank, order in enumerate(orders)]
    ).any(0)
    shared = torch.zeros(len(union), len(union), dtype=torch.float32, device=union.device)
    for piece in torch.split(union, max(1, _PIECE // len(union)), dim=1):
        part = piece.float()
        shared.addmm_(part, part.t())
    shared = shared.cpu()
    batches = [0]
    shared[:, 0] = -1
    while len(batches) < len(shared):
        following = int(shared[batches[-1]].argmax())
        shared[:, following] = -1
        batches.append(following)
    return tuple(tuple(order[batch] for batch in batches) for order in orders)


def _cost(marks: Tensor, owner: Tensor, orders: Orders, switches: Switches) -> float:
    """Returns the time of moving the sampled rows (HongTu, equation 4).

    Of the rates of the links only the ratios count.
    """
    deduplicate_ranks, reuse_chunks, _ = switches
    loaded = sent = num_reused = 0
    ranks = torch.arange(len(marks), device=marks.device).unsqueeze(1)
    is_own = owner == ranks
    before = torch.zeros_like(marks[:, 0])
    for batch in zip(*orders, strict=True):
        sources = torch.stack([marks[rank, chunk] for rank, chunk in enumerate(batch)])
        new = sources & ~before if reuse_chunks else sources
        remote = new & ~is_own
        sent += int(remote.sum())
        num_reused += int((sources & ~new).sum())
        if deduplicate_ranks:
            # A row stays with its owner as long as any rank needs it.
            union = sources.any(0)
            loaded += int((union & ~before.any(0) if reuse_chunks else union).sum())
        else:
            loaded += int(new.sum())
        before = sources
    return loaded / GPUS.host + sent / GPUS.peers + num_reused / GPUS.own
