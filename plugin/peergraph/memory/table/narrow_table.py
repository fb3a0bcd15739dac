"""Tables that store rows in fewer bytes than users see."""

from __future__ import annotations

from os import PathLike
from typing import Any, NoReturn

import torch
from torch import Tensor

from peergraph.memory.group.group import Group
from peergraph.memory.table.access import DirectRead
from peergraph.memory.table.id_list import ids_on_device
from peergraph.memory.table.partitions import Partitions
from peergraph.memory.table.row_arguments import (
    check_values,
    gathered_to,
    out_tensor,
    range_of_rows,
)
from peergraph.memory.table.row_codec import RowCodec
from peergraph.memory.table.row_encoder import RowEncoder
from peergraph.memory.table.rows_with_scales import RowsWithScales, has_scales_apart
from peergraph.memory.table.source import Source, check_source, chunks_on_device
from peergraph.memory.table.storage_report import StorageErrors
from peergraph.memory.table.table import Table
from peergraph.memory.table.tiers import Tiers
from peergraph.memory.table.wrapper_table import WrapperTable
from peergraph.profiling import GATHER, profiled
from peergraph.progress import progress_bar

_READ_CHUNK_BYTES = 32 << 20


class NarrowTable(WrapperTable):
    """A table that stores its rows in fewer bytes than users see (narrow storage).

    :attr:`stored` is a table of the encoded rows, as bytes, on all tiers. :meth:`gather` decodes
    rows as it reads them, or, for a GPU with rows in host memory, in a second kernel. Writes encode
    rows, and add their errors to :attr:`errors`. :meth:`create_narrow` allocates a table.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        codec: RowCodec,
        stored: Table | RowsWithScales,
        name: str,
    ) -> None:
        """
        Args:
            shape: the shape that users see: ``[rows, *codec.row_shape]``.
            codec: encodes and decodes rows.
            stored: the encoded rows, uint8 ``[rows, codec.row_bytes]``.
            name: the name of the table, for errors.
        """
        super().__init__(shape, codec.dtype, stored, name)
        self.codec = codec
        self.stored = stored
        self._encoder = RowEncoder(codec, name)

    @classmethod
    def create_narrow(
        cls,
        rows: int,
        codec: RowCodec,
        tiers: Tiers,
        group: Group,
        name: str,
        *,
        order: Table | Tensor | None = None,
        partitions: Partitions | None = None,
        spill: str | PathLike[str] | None = None,
        check: bool = True,
    ) -> NarrowTable:
        """Allocates a table. Collective; arguments and errors are those of :meth:`Table.create`.

        Args:
            rows: the number of rows.
            codec: encodes and decodes rows.
            name: the name of the table, for errors.
        """
        stored: Table | RowsWithScales
        if has_scales_apart(codec, tiers, group.world_size):
            stored = RowsWithScales.create(
                rows, codec, tiers, group, order=order, partitions=partitions, check=check
            )
        else:
            stored = Table.create(
                (rows, codec.row_bytes),
                torch.uint8,
                tiers,
                group,
                order=order,
                partitions=partitions,
                spill=spill,
                check=check,
            )
        return cls((rows, *codec.row_shape), codec, stored, name)

    @property
    def errors(self) -> StorageErrors:
        """The errors of all rows that this rank has written."""
        return self._encoder.errors

    @property
    def encoded_tables(self) -> list[Table]:
        """The tables of the encoded rows: one, or that of the values and that of the scales."""
        if isinstance(self.stored, RowsWithScales):
            return [self.stored.values, self.stored.scales]
        return [self.stored]

    @profiled(GATHER)
    def gather(self, ids: Tensor, out: Tensor | None = None, *, padded: bool = False) -> Tensor:
        """Returns the rows `ids` in the users' dtype, as :meth:`Table.gather`. One-sided."""
        ids = ids_on_device(ids, self.rows, self.device, padded)
        shape = (*ids.shape, *self.shape[1:])
        with gathered_to(out, shape, self.dtype, self.device) as result:
            if self.device.type == "cuda" and self.tiers.host + self.tiers.disk:
                # A kernel that only copies reads the host 10 % faster than one that also decodes,
                # and CPU threads copy the rows on disk as they are.
                rows = self.stored.gather(ids, padded=padded)
                self.codec.decode(rows.view(ids.numel(), self.row_bytes), result)
            else:
                self.stored.gather_decoded(ids, result, self.codec.native, padded)
        return result if out is None else out

    def direct_read(self) -> DirectRead | None:
        """As :meth:`Table.direct_read`."""
        if self.device.type == "cuda" and self.tiers.host + self.tiers.disk:
            return None
        read = self.stored.direct_read()
        return None if read is None else read._replace(codec=self.codec.native)

    def gather_stored(self, ids: Tensor) -> Tensor:
        """Returns the rows `ids` as they are stored: uint8 [n, row_bytes]. One-sided."""
        return self.stored.gather(ids)

    def scatter(self, ids: Tensor, values: Tensor) -> None:
        """Overwrites the rows `ids` with `values`, as :meth:`Table.scatter`. One-sided;
        synchronises with a GPU. If an id occurs twice, its row may get values of one occurrence
        and scales of another.

        Raises:
            ValueError: also if the storage cannot hold a value. Nothing is written then.
        """
        self.write(ids, values, ids)

    def write(self, ids: Tensor, values: Tensor, numbers: Tensor) -> None:
        """Overwrites rows as :meth:`scatter` does. `ids` are rows of this table, not users' ids.

        Args:
            ids, values: as in :meth:`scatter`.
            numbers: the user's id of each row, in the shape of `ids`, for errors about values.
        """
        ids = ids_on_device(ids, self.rows, self.device)
        values = check_values(values, (*ids.shape, *self.shape[1:]), self.dtype, self.device)
        rows = values.to(self.device).reshape(ids.numel(), *self.shape[1:])
        encoded = self._encoder.encode(rows, numbers)
        self.stored.scatter(ids.flatten(), encoded)

    def load(
        self,
        source: Source,
        start: int = 0,
        *,
        chunk_bytes: int = 64 << 20,
        progress: bool | None = None,
    ) -> None:
        """Encodes `source` and writes it to the users' rows [start, start + len(source)), as
        :meth:`Table.load`. One-sided; synchronises with the GPU.

        Raises:
            ValueError: also if the storage cannot hold a value. Rows of earlier chunks have been
                written then.
        """
        source = check_source(source, start, chunk_bytes, self.shape, self.dtype)
        if self.row_bytes == 0:
            return
        with progress_bar("load", len(source) * self.codec.user_bytes, progress) as moved:
            for part, chunk in chunks_on_device(source, self.device, chunk_bytes):
                count = part.stop - part.start
                rows = chunk if chunk.dtype == self.dtype else chunk.view(-1).view(self.dtype)
                rows = rows.view(count, *self.shape[1:])
                encoded = self._encoder.encode(rows, start + part.start)
                self.stored.load(encoded, start + part.start, progress=False)
                moved(count * self.codec.user_bytes)

    def load_encoded(self, rows: Tensor, start: int) -> None:
        """Writes encoded rows to the users' rows [start, start + n). One-sided; synchronises with
        the GPU.

        Args:
            rows: rows that this table's codec has encoded, uint8 [n, row_bytes].
        """
        self.stored.load(rows, start, progress=False)

    def read(self, start: int = 0, stop: int | None = None, out: Tensor | None = None) -> Tensor:
        """Returns the users' rows [start, stop) on the CPU, as :meth:`Table.read`. One-sided;
        synchronises with the GPU.
        """
        count = len(range_of_rows(start, stop, self.rows))
        result = out_tensor(out, (count, *self.shape[1:]), self.dtype, torch.device("cpu"))
        step = max(1, _READ_CHUNK_BYTES // max(1, self.row_bytes))
        for begin in range(0, count, step):
            end = min(begin + step, count)
            self.codec.decode(self.stored.read(start + begin, start + end), result[begin:end])
        return result

    def local_shard(self) -> NoReturn:
        """Raises NotImplementedError: the memory of the shard holds encoded rows."""
        raise self._not_in_place()

    def as_tensor(self) -> NoReturn:
        """Raises ValueError: the memory of the table holds encoded rows."""
        raise ValueError(f"the rows of {self.name!r} are stored as {self.codec.storage}")

    def _not_in_place(self) -> NotImplementedError:
        return NotImplementedError(
            f"kernels cannot read {self.name!r} in place: its rows are stored as "
            f"{self.codec.storage}. Gather them, or leave the table out of storage="
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return NarrowTable, (self.shape, self.codec, self.stored, self.name)

    def __repr__(self) -> str:
        return (
            f"NarrowTable(shape={self.shape}, dtype={self.dtype}, "
            f"storage={self.codec.storage!r}, {self.tiers})"
        )
