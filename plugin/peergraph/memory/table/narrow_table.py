"""Tables whose rows are stored in fewer bytes than users see."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import launch_on, most_blocks
from peergraph.memory.group.naming import collective
from peergraph.memory.table.id_list import check_device, id_list, ids_on_device, out_tensor
from peergraph.memory.table.read_counter import ReadCounter
from peergraph.memory.table.row_codec import RowCodec
from peergraph.memory.table.row_encoder import RowEncoder
from peergraph.memory.table.source import Source, check_source, chunks_on_device
from peergraph.memory.table.storage_report import StorageErrors
from peergraph.memory.table.table import Table
from peergraph.profiling import GATHER, profiled
from peergraph.progress import progress_bar

_READ_CHUNK_BYTES = 32 << 20


class NarrowTable(Table):
    """A table of one dtype for its users, and of narrower rows in memory.

    :attr:`stored` has the rows as bytes, on all tiers. Gathers decode them: from memory that the
    device reads itself in one kernel, with host rows beside a GPU or rows on disk in a second one.
    Writes encode rows, and add to what :attr:`errors` says.
    """

    def __init__(self, shape: tuple[int, ...], codec: RowCodec, stored: Table, name: str) -> None:
        """
        Args:
            shape: ``[rows, *codec.row_shape]``, as users see it.
            codec: how rows are stored.
            stored: the stored rows, uint8 ``[rows, codec.row_bytes]``.
            name: of the table, for errors.
        """
        self.shape = shape
        self.dtype = codec.dtype
        self.tiers = stored.tiers
        self.group = stored.group
        self.row_bytes = codec.row_bytes
        self.split = stored.split
        self.codec = codec
        self.stored = stored
        self.name = name
        self._encoder = RowEncoder(codec, name)

    @property
    def errors(self) -> StorageErrors:
        """What the rows that this rank has written by now have lost."""
        return self._encoder.errors

    @property
    def counter(self) -> ReadCounter | None:
        """Counts gathers after :meth:`count_reads`."""
        return self.stored.counter

    @counter.setter
    def counter(self, counter: ReadCounter | None) -> None:
        self.stored.counter = counter

    @property
    def view(self) -> NoReturn:
        """Raises NotImplementedError: kernels that read rows in place do not decode them."""
        raise self._not_in_place()

    @property
    def write_views(self) -> NoReturn:
        """Raises NotImplementedError, as :attr:`view`."""
        raise self._not_in_place()

    @property
    def leases(self) -> list[_C.Lease]:
        """The leases of the rows' memory."""
        return self.stored.leases

    @property
    def allocated(self) -> dict[str, list[int]]:
        """The bytes of each rank, by tier, including copies of shards."""
        return self.stored.allocated

    @profiled(GATHER)
    def gather(self, ids: Tensor, out: Tensor | None = None, *, padded: bool = False) -> Tensor:
        """Returns the rows `ids` in the users' dtype, as :meth:`Table.gather`. One-sided."""
        ids = ids_on_device(ids, self.rows, self.device, padded)
        shape = (*ids.shape, *self.shape[1:])
        target = out_tensor(out, shape, self.dtype, self.device)
        result = target
        if target.device != self.device:
            result = torch.empty(shape, dtype=self.dtype, device=self.device)
        if self.tiers.disk or (self.tiers.host and self.device.type == "cuda"):
            rows = self.stored.gather(ids, padded=padded)
            self.codec.decode(rows.view(ids.numel(), self.row_bytes), result)
        else:
            listed = id_list(ids, padded=padded, max_blocks=most_blocks())
            with nullcontext() if self.counter is None else self.counter.gather(ids):
                _C.decode_gather(
                    self.stored.view, self.codec.native, listed, result, launch_on(self.device)
                )
        if target is not result:
            target.copy_(result)
        return target

    def count_reads(self) -> ReadCounter:
        """Counts gathers from now on, until :attr:`counter` is set to None."""
        return self.stored.count_reads()

    def scatter(self, ids: Tensor, values: Tensor) -> None:
        """Overwrites the rows `ids` with `values`, as :meth:`Table.scatter`. One-sided;
        synchronises with a GPU. Of duplicate ids, values and scales of a row may be those of
        different ids.

        Raises:
            ValueError: also for a value that the storage cannot hold; nothing is written then.
        """
        self.write(ids, values, ids)

    def write(self, ids: Tensor, values: Tensor, numbers: Tensor) -> None:
        """As :meth:`scatter`; errors name rows by `numbers`, of the shape of `ids`."""
        ids = ids_on_device(ids, self.rows, self.device)
        if not isinstance(values, Tensor):
            raise TypeError(f"values must be a tensor, got {type(values).__name__}")
        if values.dtype != self.dtype:
            raise ValueError(f"values must be {self.dtype}, got {values.dtype}")
        shape = (*ids.shape, *self.shape[1:])
        if tuple(values.shape) != shape:
            raise ValueError(f"values must have shape {shape}, got {tuple(values.shape)}")
        check_device("values", values, self.device)
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
            ValueError: also for a value that the storage cannot hold; rows before its chunk have
                been written then.
        """
        check_source(source, start, chunk_bytes, self.shape, self.dtype)
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
        """Writes rows that are encoded by this table's codec to the users' rows from `start` on.
        One-sided; synchronises with the GPU.

        Args:
            rows: uint8 [n, row_bytes].
        """
        self.stored.load(rows, start, progress=False)

    def read(self, start: int = 0, stop: int | None = None, out: Tensor | None = None) -> Tensor:
        """Returns the users' rows [start, stop) on the CPU, as :meth:`Table.read`. One-sided;
        synchronises with the GPU.
        """
        stop = self.rows if stop is None else stop
        if not 0 <= start <= stop <= self.rows:
            raise ValueError(f"rows [{start}, {stop}) are not within a table of {self.rows} rows")
        shape = (stop - start, *self.shape[1:])
        result = out_tensor(out, shape, self.dtype, torch.device("cpu"))
        step = max(1, _READ_CHUNK_BYTES // max(1, self.row_bytes))
        for begin in range(0, stop - start, step):
            end = min(begin + step, stop - start)
            self.codec.decode(self.stored.read(start + begin, start + end), result[begin:end])
        return result

    def local_shard(self) -> NoReturn:
        """Raises NotImplementedError: the shard is no tensor of the users' dtype."""
        raise self._not_in_place()

    def as_tensor(self) -> NoReturn:
        """Raises ValueError: the rows are no tensor of the users' dtype."""
        raise ValueError(f"the rows of {self.name!r} are stored as {self.codec.storage}")

    @collective("Table.close")
    def close(self) -> None:
        """Releases the memory, as :meth:`Table.close`."""
        self.stored.close()

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
