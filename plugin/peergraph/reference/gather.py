"""Gathering by messages, as in distributed memory: WholeGraph III-C3, Figure 4, left."""

from __future__ import annotations

import torch
import torch.distributed as dist


def five_step_gather(
    shard: torch.Tensor, ids: torch.Tensor, process_group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Returns the rows `ids` of a table whose row j is `shard[j // W]` on rank j % W. Collective.

    What shared memory makes unnecessary: the opponent of :meth:`peergraph.memory.Table.gather` in
    benchmarks. Synchronises with the GPU, for the numbers of ids must be known on the CPU.

    Args:
        shard: [ceil or floor of rows / W, *row shape], this rank's rows, on the device that the
            process group communicates from.
        ids: int32 or int64 [n], in range (not checked), on the same device; n may differ by rank.
        process_group: of W ranks; default: all.
    """
    world_size = dist.get_world_size(process_group)
    # Step 1: put ids with the same owner next to each other.
    owners = ids % world_size
    order = torch.argsort(owners, stable=True)
    counts = torch.bincount(owners, minlength=world_size)
    # Step 2: exchange their numbers, then the ids.
    asked_counts = torch.empty_like(counts)
    dist.all_to_all_single(asked_counts, counts, group=process_group)
    own, asked = torch.stack([counts, asked_counts]).tolist()
    asked_ids = ids.new_empty(sum(asked))
    dist.all_to_all_single(asked_ids, ids[order], asked, own, group=process_group)
    # Step 3: gather locally.
    answers = shard.index_select(0, asked_ids // world_size)
    # Step 4: send the rows back, as bytes, since not every backend sends every dtype.
    answer = shard.new_empty((len(ids), *shard.shape[1:]))
    dist.all_to_all_single(_as_bytes(answer), _as_bytes(answers), own, asked, group=process_group)
    # Step 5: bring them into the order of the ids.
    rows = torch.empty_like(answer)
    rows[order] = answer
    return rows


def _as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """The rows as uint8 [n, row bytes], sharing memory."""
    flat = rows.unsqueeze(-1).flatten(1)
    return flat.view(torch.uint8)
