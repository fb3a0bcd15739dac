"""Encoded int8 rows whose scales are in a table of their own, which is replicated."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import launch_on, most_blocks
from peergraph.memory.group.group import Group
from peergraph.memory.region.closing import close_all
from peergraph.memory.table.access import DirectRead
from peergraph.memory.table.id_list import id_list
from peergraph.memory.table.partitions import Partitions
from peergraph.memory.table.read_counter import ReadCounter, counted
from peergraph.memory.table.row_codec import RowCodec
from peergraph.memory.table.table import Table
from peergraph.memory.table.tier_sizes import tier_bytes
from peergraph.memory.table.tiers import Tiers

# GPUs read each other's memory in sectors of this many bytes.
_SECTOR_BYTES = 32


def has_scales_apart(codec: RowCodec, tiers: Tiers, world_size: int) -> bool:
    """Returns whether a table stores the scales of its rows apart from the values.

    This pays if the values are whole sectors and ranks read them from each other: rows without
    scales begin at sectors, and the scales are read from the rank's own memory. The scales are on
    every rank, and may not take more memory there than rows with scales and padding would.
    """
    on_gpus = tiers.sharded > 0 and not tiers.host and not tiers.disk
    return (
        world_size > 1
        and on_gpus
        and codec.num_groups > 0
        and codec.value_bytes % _SECTOR_BYTES == 0
        and codec.scale_bytes * world_size <= codec.row_bytes - codec.value_bytes
    )


def encoded_bytes(codec: RowCodec, tiers: Tiers, world_size: int) -> dict[str, list[int]]:
    """Returns the bytes of each tier of a table of encoded rows, as :func:`tier_bytes`."""
    if not has_scales_apart(codec, tiers, world_size):
        return tier_bytes(tiers, codec.row_bytes, world_size)
    sizes = tier_bytes(tiers, codec.value_bytes, world_size)
    scales = codec.scale_bytes * tiers.rows
    return {**sizes, "replicated": [size + scales for size in sizes["replicated"]]}


class RowsWithScales:
    """Encoded rows, held as a table of the values and a table of the scales.

    Callers write and read rows as the codec encodes them, with scales and padding.

    Args:
        codec: the codec of the rows, which has scales.
        values: the values of the rows, uint8 ``[rows, codec.value_bytes]``.
        scales: the scales of the rows, float32 ``[rows, codec.num_groups]``, in the same order.
    """

    def __init__(self, codec: RowCodec, values: Table, scales: Table) -> None:
        self.codec = codec
        self.values = values
        self.scales = scales
        self.shape = (values.rows, codec.row_bytes)
        self.dtype = values.dtype
        self.rows = values.rows
        self.row_bytes = codec.row_bytes
        self.tiers = values.tiers
        self.group = values.group
        self.split = values.split

    @classmethod
    def create(
        cls,
        rows: int,
        codec: RowCodec,
        tiers: Tiers,
        group: Group,
        *,
        order: Table | Tensor | None = None,
        partitions: Partitions | None = None,
        check: bool = True,
    ) -> RowsWithScales:
        """Allocates the tables. Collective; arguments and errors are those of
        :meth:`Table.create`.

        Args:
            rows: the number of rows.
            codec: the codec of the rows.
            tiers: rows per tier, of the values.
        """
        with ExitStack() as undo:
            values = Table.create(
                (rows, codec.value_bytes),
                torch.uint8,
                tiers,
                group,
                order=order,
                partitions=partitions,
                check=check,
            )
            undo.callback(values.close)
            scales = Table.create(
                (rows, codec.num_groups),
                torch.float32,
                Tiers.all_replicated(rows),
                group,
                order=order,
                check=False,
            )
            undo.pop_all()
        return cls(codec, values, scales)

    @property
    def counter(self) -> ReadCounter | None:
        """Counts gathers after :meth:`count_reads`."""
        return self.values.counter

    @counter.setter
    def counter(self, counter: ReadCounter | None) -> None:
        self.values.counter = counter

    @property
    def view(self) -> _C.TableView:
        """The view of the values that kernels take."""
        return self.values.view

    @property
    def leases(self) -> list[_C.Lease]:
        """The leases of the rows' memory."""
        return [*self.values.leases, *self.scales.leases]

    @property
    def allocated(self) -> dict[str, list[int]]:
        """The bytes that each rank has allocated, by tier, including copies of shards."""
        sizes = dict(self.values.allocated)
        for tier, of_scales in self.scales.allocated.items():
            of_values = sizes.get(tier, [0] * len(of_scales))
            sizes[tier] = [a + b for a, b in zip(of_values, of_scales, strict=True)]
        return sizes

    def count_reads(self) -> ReadCounter:
        """Counts gathers from now on, until :attr:`counter` is set to None."""
        return self.values.count_reads()

    def gather(self, ids: Tensor, *, padded: bool = False) -> Tensor:
        """Returns the encoded rows `ids`: uint8 [*ids.shape, row_bytes], as
        :meth:`Table.gather`. One-sided.
        """
        return self._joined(
            self.values.gather(ids, padded=padded), self.scales.gather(ids, padded=padded)
        )

    def direct_read(self) -> DirectRead | None:
        """As :meth:`Table.direct_read`; without the codec."""
        read = self.values.direct_read()
        return None if read is None else read._replace(scales=self.scales.view)

    def gather_decoded(self, ids: Tensor, out: Tensor, codec: _C.RowCodec, padded: bool) -> None:
        """Writes the rows `ids`, decoded by a codec, to `out`, as :meth:`Table.gather_decoded`."""
        listed = id_list(ids, padded=padded, max_blocks=most_blocks())
        with counted(self.counter, ids):
            _C.decode_gather(
                self.values.view, codec, listed, out, launch_on(out.device), self.scales.view
            )

    def scatter(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrites the rows `ids` with encoded rows, as :meth:`Table.scatter`. One-sided.

        Args:
            ids: [n] ids of rows.
            rows: uint8 [n, row_bytes].
        """
        values, scales = self._parts(rows)
        self.values.scatter(ids, values)
        self.scales.scatter(ids, scales)

    def load(self, source: Tensor, start: int = 0, *, progress: bool | None = None) -> None:
        """Writes encoded rows, uint8 [n, row_bytes], to the users' rows [start, start + n), as
        :meth:`Table.load`. One-sided; synchronises with the GPU.
        """
        values, scales = self._parts(source)
        self.values.load(values, start, progress=progress)
        self.scales.load(scales, start, progress=progress)

    def read(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Returns the encoded rows [start, stop) on the CPU, as :meth:`Table.read`. One-sided;
        synchronises with the GPU.
        """
        return self._joined(self.values.read(start, stop), self.scales.read(start, stop))

    def close(self) -> None:
        """Releases the memory, as :meth:`Table.close`."""
        close_all([self.values.close, self.scales.close])

    def _parts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the values and the scales of encoded rows, for the two tables."""
        values = rows[:, : self.codec.value_bytes].contiguous()
        return values, rows[:, self.codec.scales].contiguous().view(torch.float32)

    def _joined(self, values: Tensor, scales: Tensor) -> Tensor:
        """Returns encoded rows, given their values and scales."""
        shape = (*values.shape[:-1], self.row_bytes)
        rows = torch.zeros(shape, dtype=torch.uint8, device=values.device)
        rows[..., : self.codec.value_bytes] = values
        rows[..., self.codec.scales] = scales.view(torch.uint8)
        return rows

    def __repr__(self) -> str:
        return f"RowsWithScales(shape={self.shape}, {self.tiers})"
