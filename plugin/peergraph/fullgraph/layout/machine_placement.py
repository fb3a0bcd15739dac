"""Puts parts of a graph that need each other's rows on the same machine."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def rows_between_parts(
    source: Tensor, destination: Tensor, part: Tensor, num_parts: int
) -> list[list[int]]:
    """Returns how many distinct rows each part needs of each other, ``[parts][parts]``.

    Takes 16 bytes for each edge. Synchronises.

    Args:
        source, destination: [edges] int64 ends of the edges.
        part: [nodes] int64.
        num_parts: number of parts.
    """
    source_parts = torch.unique(source * num_parts + part[destination])
    pairs = source_parts % num_parts * num_parts + part[source_parts // num_parts]
    counts = torch.bincount(pairs, minlength=num_parts * num_parts)
    rows: list[list[int]] = counts.view(num_parts, num_parts).tolist()
    return rows


def place_parts(rows: Sequence[Sequence[int]], machines: Sequence[Sequence[int]]) -> list[int]:
    """Returns the rank of each part, so that few rows are needed between machines.

    Part i begins at rank i. Of all pairs of parts on different machines, the one whose exchange
    saves most rows is exchanged, until none does (Kernighan and Lin's local search).

    Args:
        rows: ``[parts][parts]`` rows that parts need of each other.
        machines: the ranks of each machine; as many ranks as parts.
    """
    count = len(rows)
    machine_of = {rank: m for m, ranks in enumerate(machines) for rank in ranks}
    weight = torch.tensor(rows, dtype=torch.int64, device="cpu").view(count, count)
    weight = (weight + weight.t()).fill_diagonal_(0)
    rank_of = list(range(count))
    while True:
        machine_of_part = torch.tensor([machine_of[rank] for rank in rank_of], device="cpu")
        is_on_machine = torch.nn.functional.one_hot(machine_of_part, len(machines))
        # [parts, machines] rows between a part and all parts of a machine.
        to_machine = weight @ is_on_machine
        own_machine = to_machine.gather(1, machine_of_part.unsqueeze(1))
        # [parts, parts] what moving part a to the machine of part b saves, if b stays there.
        gain = to_machine[:, machine_of_part] - own_machine
        # Exchanging a and b saves both gains, but for the rows between a and b, counted in each.
        saved = gain + gain.t() - 2 * weight
        saved[machine_of_part.unsqueeze(1) == machine_of_part] = 0
        a, b = divmod(int(saved.argmax()), count)
        if int(saved[a, b]) <= 0:
            return rank_of
        rank_of[a], rank_of[b] = rank_of[b], rank_of[a]
