"""Tables with rows split over machines."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol

import numpy as np
import torch

import peergraph._C as _C
from peergraph.memory.distributed.remote_rows import Location, RemoteRows, remote_rows_of
from peergraph.memory.distributed.row_bytes import place_rows
from peergraph.memory.distributed.row_set import RowSet
from peergraph.memory.table.id_list import id_list, ids_on_device
from peergraph.memory.table.narrow_table import NarrowTable
from peergraph.memory.table.row_arguments import gathered_to, out_tensor, range_of_rows
from peergraph.memory.table.source import Source, check_source
from peergraph.memory.table.table import Table
from peergraph.memory.table.wrapper_table import WrapperTable
from peergraph.progress import progress_bar

# Marks ids out of range in lists of local rows, where -1 marks rows of other machines.
_OUT_OF_RANGE = -2


class Exchange(Protocol):
    """An exchange of rows between machines (:class:`RowExchange`)."""

    def open(self, name: str) -> AbstractContextManager[Any]:
        """Opens a session of the exchange."""


class RemoteRowsError(RuntimeError):
    """A read outside of a loader asked for rows that another machine has."""


class DistributedTable(WrapperTable):
    """A table with its hottest rows on each machine and its other rows on one machine each
    (WholeGraph III-D; ``machines="shard"``).

    The shape counts the rows of all machines. Each machine keeps its own rows in a :class:`Table`,
    placed by the machine's plan. :meth:`gather` reads the rows of this machine, and those rows of
    other machines that a loader has received for the batch; for any other row it raises an error.
    A table pickles as a handle for processes of its machine.
    """

    def __init__(self, shape: tuple[int, ...], local: Table, rows: RowSet, name: str) -> None:
        """
        Args:
            shape: the shape of the table, with the rows of all machines.
            local: the table of this machine's rows, in the order of their local rows.
            rows: the row set, which knows the machine of each row.
            name: the table's name, the same on all machines.
        """
        super().__init__(shape, local.dtype, local, name)
        self.local = local
        self.row_set = rows
        self._exchange: weakref.ref[Exchange] | None = None

    def connect(self, exchange: Exchange) -> None:
        """Sets the exchange that :meth:`collective_read` uses."""
        self._exchange = weakref.ref(exchange)

    def is_remote(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns for each id whether another machine has its row: bool, in the shape of `ids`, on
        the table's device.

        Args:
            ids: row ids as in :meth:`gather`.
        """
        return (self.locate(ids)[0] == -1).view(ids.shape)

    def gather(
        self, ids: torch.Tensor, out: torch.Tensor | None = None, *, padded: bool = False
    ) -> torch.Tensor:
        """Returns the rows `ids`, as :meth:`Table.gather`. One-sided.

        On a GPU it synchronises, unless a loader has announced this very tensor of ids.

        Raises:
            RemoteRowsError: another machine has a row, and no loader has received it for this
                batch.
        """
        remote = remote_rows_of(self.row_set)
        location = None if remote is None or padded else remote.location_of(ids)
        if location is None:
            ids = self._checked_ids(ids, padded)
            location = self._locate(ids, remote, padded)
        shape = (*ids.shape, *self.shape[1:])
        with gathered_to(out, shape, self.dtype, self.device) as result:
            self.local.gather(location.local.view(ids.shape), result, padded=True)
            if remote is not None and location.positions.numel() and self.row_bytes:
                self._copy_remote(remote, location, result)
        return result if out is None else out

    def direct_read(self) -> None:
        """Returns None: a gather also copies rows that were received from other machines."""
        return None

    def gather_stored(self, ids: torch.Tensor) -> NoReturn:
        """Raises NotImplementedError: other machines have rows, too."""
        raise NotImplementedError(
            f"the rows of {self.name!r} are split over machines: gather those of table.local"
        )

    def collective_read(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows `ids`, those of other machines included. Collective over all ranks of
        all machines; each rank passes its own ids, or none. Synchronises.

        Raises:
            IndexError: an id is out of range.
            PeerLostError: a rank did not join in time, or called something else.
            RuntimeError: this process is no rank of the store, or the store is closed.
        """
        exchange = None if self._exchange is None else self._exchange()
        if exchange is None:
            raise RuntimeError("only the ranks that built a store can read rows of other machines")
        ids = self._checked_ids(ids, padded=False)
        with exchange.open(f"collective_read of {self.name}") as session:
            fetched = session.fetch([(self, ids)])
            with fetched.reading():
                return self.gather(ids)

    def locate(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the local row of each id, -1 for rows of other machines, and the internal row of
        each id.

        Args:
            ids: row ids on the CPU or the table's device, any shape.

        Raises IndexError for an id on the CPU that is out of range.
        """
        return self._place(self._checked_ids(ids, padded=False))

    def _checked_ids(self, ids: torch.Tensor, padded: bool) -> torch.Tensor:
        checked = ids_on_device(ids, self.rows, self.device, padded)
        if self.device.type == "cpu":
            _C.check_ids(id_list(checked, padded=padded), self.rows, torch.get_num_threads())
        return checked

    def _place(self, ids: torch.Tensor, padded: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what :meth:`locate` returns. The local rows of ids out of range are out of range
        too, so that kernels report them, unless :meth:`RowSet.internal_row` has done so.
        """
        # The number of rows may exceed int32.
        ids = ids.flatten().long()
        internal = self.row_set.internal_row(ids, padded=padded)
        local = self.row_set.split.local_row(internal)
        if padded or not self.row_set.is_ordered:
            local.masked_fill_((ids < 0) | (ids >= self.rows), _OUT_OF_RANGE)
        return local, internal

    def _locate(self, ids: torch.Tensor, remote: RemoteRows | None, padded: bool) -> Location:
        local, internal = self._place(ids, padded)
        (positions,) = torch.where(local == -1)
        slots = internal.new_full((len(positions),), -1)
        if remote is not None:
            slots = remote.slots_of(internal[positions])
        missing = positions[slots < 0]
        if missing.numel():
            first = int(ids.flatten()[missing[0]])
            machine = int(self.row_set.split.machine_of(internal[missing[:1]]))
            where = self.group.machines.describe(machine)
            raise RemoteRowsError(self._advice(f"has row {first} on {where}"))
        if padded:
            local = torch.where(ids.flatten() == -1, -1, local)
        return Location(local, positions, slots)

    def _copy_remote(self, remote: RemoteRows, location: Location, out: torch.Tensor) -> None:
        """Copies the received rows of other machines into the result of a gather."""
        values = remote.values.get(self.name)
        if values is None:
            raise RemoteRowsError(self._advice("has not been read for this batch"))
        place_rows(self.local, values, location.slots, location.positions, out)

    def _advice(self, what: str) -> str:
        return (
            f'table {self.name!r} {what}: with machines="shard" loaders bring rows of other '
            "machines with their batches; elsewhere call table.collective_read(ids) on all ranks, "
            'or build the store with machines="replicate"'
        )

    def _not_in_place(self) -> NotImplementedError:
        return NotImplementedError(
            f"kernels cannot read {self.name!r} in place: its rows are split over machines. Gather "
            'them, or build the store with machines="replicate"'
        )

    def scatter(self, ids: torch.Tensor, values: torch.Tensor) -> None:
        """Raises NotImplementedError: a write would have to reach other machines."""
        raise NotImplementedError(
            f"rows of {self.name!r} are split over machines and cannot be written one by one: "
            'write them before the store is built, or build it with machines="replicate"'
        )

    def scatter_kept(self, ids: torch.Tensor, values: torch.Tensor) -> None:
        """Writes those of the rows `ids` that this machine has. One-sided; where hot rows are
        written, each machine writes them.

        Args:
            ids: [n] users' ids.
            values: [n, *row shape] on the table's device.

        Raises IndexError for an id on the CPU that is out of range.
        """
        local, _ = self.locate(ids)
        positions = (local >= 0).nonzero().squeeze(1)
        self.load_local(local[positions], values[positions], ids[positions])

    def load(
        self,
        source: Source,
        start: int = 0,
        *,
        chunk_bytes: int = 64 << 20,
        progress: bool | None = None,
    ) -> None:
        """Writes the users' rows [start, start + len(source)), as :meth:`Table.load`. One-sided.

        It writes the rows that this machine has; every machine loads the same source.
        """
        source = check_source(source, start, chunk_bytes, self.shape, self.dtype)
        if self.row_bytes == 0:
            return
        step = max(1, chunk_bytes // self.row_bytes)
        with progress_bar("load", len(source) * self.row_bytes, progress) as moved:
            for begin in range(0, len(source), step):
                part = source[begin : begin + step]
                positions, local = self.row_set.kept_rows(start + begin, len(part))
                rows = _select(part, positions)
                self.load_local(local, rows, positions + (start + begin))
                moved(len(part) * self.row_bytes)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def load_local(self, local: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> None:
        """Writes rows of this machine. One-sided.

        Args:
            local: [n] indices of local rows.
            rows: [n, *row shape] values of these rows, on the CPU or the table's device.
            ids: [n] the users' numbers of the rows, for errors.
        """
        self.local.write(local.to(self.device), rows, ids)

    def load_encoded(self, rows: torch.Tensor, start: int) -> None:
        """Writes encoded rows, uint8 [n, row bytes], to the users' rows [start, start + n), as
        :meth:`load`. Raises ValueError if the table has no narrow storage.
        """
        if not isinstance(self.local, NarrowTable):
            raise ValueError(f"the rows of {self.name!r} are stored as they are")
        positions, local = self.row_set.kept_rows(start, len(rows))
        self.local.stored.scatter(local.to(self.device), rows[positions.to(rows.device)])

    def read(
        self, start: int = 0, stop: int | None = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns the users' rows [start, stop) on the CPU, as :meth:`Table.read`.

        Raises:
            RemoteRowsError: another machine has one of these rows.
        """
        span = range_of_rows(start, stop, self.rows)
        shape = (len(span), *self.shape[1:])
        result = out_tensor(out, shape, self.dtype, torch.device("cpu"))
        if span:
            self.gather(torch.arange(span.start, span.stop, device="cpu"), result)
        return result

    def shard_rows(self, rank: int | None = None) -> NoReturn:
        """Raises NotImplementedError: the rows are split over machines first, then over ranks."""
        raise NotImplementedError(f"{self.name!r} is split over machines: use table.local")

    def local_shard(self) -> NoReturn:
        """Raises NotImplementedError, as :meth:`shard_rows`."""
        self.shard_rows()

    def as_tensor(self) -> NoReturn:
        """Raises ValueError: the rows are not contiguous in memory that this rank reaches."""
        raise ValueError(f"the rows of {self.name!r} are on several machines")

    def __reduce__(self) -> tuple[Any, ...]:
        return DistributedTable, (self.shape, self.local, self.row_set, self.name)

    def __repr__(self) -> str:
        split = self.row_set.split
        return (
            f"DistributedTable(shape={self.shape}, dtype={self.dtype}, "
            f"{split.hot} rows on each of {split.machines} machines, here {self.tiers})"
        )


def _select(part: Source, positions: torch.Tensor) -> torch.Tensor:
    """Returns some rows of a chunk, contiguous. From an array on disk it reads only these rows."""
    if isinstance(part, torch.Tensor):
        return part[positions.to(part.device)]
    return torch.from_numpy(np.ascontiguousarray(part[positions.cpu().numpy()]))
