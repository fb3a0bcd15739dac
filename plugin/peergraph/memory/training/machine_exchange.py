"""Sends sums of gradients to the other machines. Each machine has all rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from peergraph.memory.group.group import Group
from peergraph.memory.table.packed_rows import pack, packed_offsets, unpack
from peergraph.memory.training.coalesce import SparseRows


class MachineExchange:
    """Sends each rank's rows to one rank of every other machine, by an all-to-all of all ranks.

    A rank sends its rows over the network once to each machine, to its partner there
    (:attr:`Machines.partners`). The ranks of that machine then send the rows to their owners.
    """

    def __init__(self, group: Group, tables: Sequence[tuple[int, torch.dtype]]) -> None:
        """
        Args:
            group: the ranks of this machine.
            tables: the width and the dtype of each table's values.

        Raises:
            NotImplementedError: the process group has no backend for tensors on the device.
        """
        self._group = group
        self._tables = list(tables)
        self._device = _device_of(group)
        self._targets = group.machines.partners
        others = [
            ranks for m, ranks in enumerate(group.machines.ranks) if m != group.machines.index
        ]
        # By rank of this machine: the ranks from which it gets rows. No rank has more than rank 0.
        self._sources = [
            [source for ranks in others for source in ranks[rank :: group.world_size]]
            for rank in range(group.world_size)
        ]

    def source(self, slot: int, rank: int) -> int | None:
        """Returns the sender, as a rank in torch.distributed, from which `rank` of this machine
        gets rows in a slot; None if the slot has no sender.
        """
        sources = self._sources[rank]
        return sources[slot] if slot < len(sources) else None

    def send(self, rows: Sequence[SparseRows | None] | None) -> list[list[SparseRows | None]]:
        """Returns, for each slot and table, the rows that this rank gets. Collective over all
        machines; synchronises.

        Args:
            rows: the rows for each table, None for a table to which this rank sends no rows. None
                instead of the list if this rank has failed.

        Raises RuntimeError if another rank has failed.
        """
        received = self._exchange_headers(rows)
        failed = [rank for rank, words in enumerate(received) if words[0]]
        if rows is None:
            return []
        if failed:
            raise RuntimeError(f"rank {failed[0]} failed in this step: see its error")
        counts = [[word - 1 for word in words[1:]] for words in received]
        payload = self._pack(rows)
        sizes = [payload.numel() if r in self._targets else 0 for r in range(len(received))]
        expected = [packed_offsets(self._sizes(c))[-1] for c in counts]
        inbox = torch.empty(sum(expected), dtype=torch.uint8, device=self._device)
        dist.all_to_all_single(inbox, payload.repeat(len(self._targets)), expected, sizes)
        parts = torch.split(inbox.to(self._group.device), expected)
        slots = range(len(self._sources[0]))
        sources = [self.source(slot, self._group.rank) for slot in slots]
        nothing: list[SparseRows | None] = [None] * len(self._tables)
        return [nothing if s is None else self._unpack(parts[s], counts[s]) for s in sources]

    def _exchange_headers(self, rows: Sequence[SparseRows | None] | None) -> list[list[int]]:
        """Returns the header of every rank: whether it has failed, and for each table the number of
        rows plus 1, 0 for a table without rows.
        """
        shape = (self._group.machines.world_size, 1 + len(self._tables))
        header = torch.zeros(shape, dtype=torch.int64, device="cpu")
        if rows is None:
            header[:, 0] = 1
        else:
            counts = [0 if r is None else 1 + r.count for r in rows]
            header[self._targets, 1:] = torch.tensor(counts, device="cpu")
        sent = header.to(self._device)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        return [list(map(int, words)) for words in received.tolist()]

    def _sizes(self, counts: Sequence[int]) -> list[tuple[int, int]]:
        """Returns the number of rows and the bytes of a row, of each table's ids and values."""
        sizes = []
        for (width, dtype), count in zip(self._tables, counts, strict=True):
            sizes += [(max(0, count), 8), (max(0, count), width * dtype.itemsize)]
        return sizes

    def _pack(self, rows: Sequence[SparseRows | None]) -> Tensor:
        pieces = []
        for sent in rows:
            if sent is not None:
                pieces += [sent.keys.contiguous().unsqueeze(1), sent.values.contiguous()]
        return pack([p.view(torch.uint8) for p in pieces], self._group.device).to(self._device)

    def _unpack(self, message: Tensor, counts: Sequence[int]) -> list[SparseRows | None]:
        parts = unpack(message, self._sizes(counts))
        tables: list[SparseRows | None] = []
        for (_, dtype), count in zip(self._tables, counts, strict=True):
            keys, values = next(parts), next(parts)
            rows = SparseRows(keys.clone().view(torch.int64).squeeze(1), values.clone().view(dtype))
            tables.append(rows if count >= 0 else None)
        return tables


def _device_of(group: Group) -> torch.device:
    """Returns the device on which the process group sends and receives tensors."""
    backends = str(dist.get_backend_config())
    if group.device.type == "cuda" and "nccl" in backends:
        return group.device
    if "gloo" in backends:
        return torch.device("cpu")
    raise NotImplementedError(
        f"trained tables on {group.device} over several machines need a process group that sends "
        f'such tensors, this one is {backends}: call init_process_group("cpu:gloo,cuda:nccl")'
    )
