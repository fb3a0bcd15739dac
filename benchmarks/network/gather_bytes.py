"""Bytes between machines that gathers send for given mini-batches, by exact counts of their ids.

WholeGraph's gathers run on GPUs alone, so that their bytes are computed here from what their
sources do (cugraph-gnn, cpp/src/wholememory_ops). A table's rows lie in blocks of equal size on
all ranks, numbered machine by machine.

``distributed`` (gather_op_impl_nccl.cu, functions/exchange_ids_nccl_func.cu; the five steps of
WholeGraph's paper, III-C3 and Figure 4): each rank sorts the ids of its mini-batch by owner,
sends each owner a count of 8 bytes and the ids, and gets the rows. Ids are not merged: a row that
the ranks of a machine need is sent to each of them.

``hierarchy`` (gather_op_impl_hierarchy.cu): inside the machine, ids go to the rank with the
owner's number in its machine, which sorts them and removes duplicates. It sends counts of 8 bytes,
ids and rows to and from the ranks with the same number in the other machines: a row crosses the
network once for each machine. All machines have equally many ranks; there is no cache
(embedding.cpp refuses one for this type of memory).

Ids have the type of the caller's tensor, for torch's indices int64. Inside a machine nothing is
counted. For `distributed`, a cache of remote rows is an option of WholeGraph's, which is not
counted either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

COUNT_BYTES = 8


@dataclass(frozen=True)
class Sent:
    """What all machines together send to other machines.

    Args:
        rows: rows; as many ids are sent for them.
        counts: numbers of ids that ranks tell each other.
    """

    rows: int
    counts: int

    def num_bytes(self, row_bytes: int, id_bytes: int) -> int:
        """Of ids, rows and counts."""
        return self.rows * (row_bytes + id_bytes) + self.counts * COUNT_BYTES

    def __add__(self, other: Sent) -> Sent:
        return Sent(self.rows + other.rows, self.counts + other.counts)


@dataclass(frozen=True)
class Layout:
    """The ranks of some machines, and the owners of a table's rows.

    Args:
        machines: how many.
        ranks: of each machine.
        num_rows: of the table.
    """

    machines: int
    ranks: int
    num_rows: int

    @property
    def world_size(self) -> int:
        return self.machines * self.ranks

    def owners(self, ids: Tensor) -> Tensor:
        """The rank of each row."""
        return ids // -(-self.num_rows // self.world_size)

    def elsewhere(self, ids: Tensor, machine: int) -> Tensor:
        """Those of the ids whose rows are on another machine."""
        return ids[self.owners(ids) // self.ranks != machine]


def distributed(batches: Sequence[Tensor], layout: Layout) -> Sent:
    """One step of WholeGraph's ``distributed`` gather.

    Args:
        batches: the ids of each rank's mini-batch.
    """
    remote = [layout.elsewhere(ids, rank // layout.ranks) for rank, ids in enumerate(batches)]
    pairs = layout.world_size * (layout.world_size - layout.ranks)
    return Sent(sum(ids.numel() for ids in remote), pairs)


def hierarchy(batches: Sequence[Tensor], layout: Layout) -> Sent:
    """One step of WholeGraph's ``hierarchy`` gather; as :func:`distributed`."""
    pairs = layout.world_size * (layout.machines - 1)
    return Sent(distinct_rows(batches, layout, layout.elsewhere), pairs)


def distinct_rows(
    batches: Sequence[Tensor], layout: Layout, elsewhere: Callable[[Tensor, int], Tensor]
) -> int:
    """The rows that machines need of others: each counted once for each machine.

    Args:
        elsewhere: those of some ids whose rows a machine does not have.
    """
    count = 0
    for machine in range(layout.machines):
        mine = batches[machine * layout.ranks : (machine + 1) * layout.ranks]
        count += elsewhere(torch.cat(list(mine)).unique(), machine).numel()
    return count
