"""One exchange of rows: brings to all ranks the rows that they need for their next batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

import torch

from peergraph.memory.distributed.distributed_table import DistributedTable
from peergraph.memory.distributed.exchange_network import ExchangeNetwork, Transfer
from peergraph.memory.distributed.network_traffic import TrafficCounter
from peergraph.memory.distributed.remote_rows import Location, RemoteRows
from peergraph.memory.distributed.row_bytes import copy_rows, select_rows
from peergraph.memory.distributed.row_set import RowSet
from peergraph.memory.table.packed_rows import pack, packed_offsets, unpack

Request = tuple[DistributedTable, torch.Tensor]

_CPU = torch.device("cpu")
_HEADER, _LOCAL_IDS, _COUNTS, _IDS, _ROWS, _LOCAL_ROWS = range(6)
_ROUNDS_WITH_TAGS = 1 << 20
_MOST_TABLES = 63  # one bit of an int64 each
_WORD = 8


def header_tag(number: int) -> int:
    """Returns the tag of the headers of a round."""
    return _tag(number, _HEADER)


def _tag(number: int, message: int) -> int:
    """Returns the tag of a message of a round. Rounds that overlap have different tags."""
    return 6 * (number % _ROUNDS_WITH_TAGS) + message


class Layout:
    """The tables of an exchange, grouped by row set, in the same order on all ranks."""

    def __init__(self, tables: Sequence[DistributedTable]) -> None:
        self.sets = list(dict.fromkeys(table.row_set for table in tables))
        self.tables = {s: [t for t in tables if t.row_set is s] for s in self.sets}
        for rows, of_set in self.tables.items():
            if len(of_set) > _MOST_TABLES:
                raise NotImplementedError(
                    f"{rows.name!r} has {len(of_set)} tables with rows split over machines, and "
                    f"the exchange takes {_MOST_TABLES}: join some, or build with "
                    'machines="replicate"'
                )

    def named(self, rows: RowSet, mask: int) -> list[DistributedTable]:
        """Returns the tables of a row set for which a bit of the mask is set."""
        return [t for bit, t in enumerate(self.tables[rows]) if mask >> bit & 1]


@dataclass
class WantedRows:
    """The rows of one row set that a rank wants from other machines.

    Attributes:
        mask: the tables of the row set that it reads, as bits.
        rows: the distinct rows.
        by_rank: for each rank of this machine, the positions in `rows` of the rows that this rank
            fetches from the other machines.
    """

    mask: int
    rows: RemoteRows
    by_rank: list[torch.Tensor]


def wanted_rows(
    requests: Sequence[Request], layout: Layout, local_ranks: int
) -> dict[RowSet, WantedRows]:
    """Returns the rows of other machines that a batch needs. Synchronises with a GPU.

    Raises IndexError for ids on the CPU that are out of range.
    """
    found = {}
    for rows in layout.sets:
        in_set = [(table, ids) for table, ids in requests if table.row_set is rows]
        if not in_set:
            continue
        mask = sum(
            1 << bit for bit, t in enumerate(layout.tables[rows]) if any(t is r for r, _ in in_set)
        )
        lists = list({id(ids): ids for _, ids in in_set}.values())
        located = [in_set[0][0].locate(ids) for ids in lists]
        positions = [(local == -1).nonzero().squeeze(1) for local, _ in located]
        remote = [internal[p] for (_, internal), p in zip(located, positions, strict=True)]
        distinct = torch.unique(torch.cat(remote))
        locations = [
            Location(local, p, torch.searchsorted(distinct, r))
            for (local, _), p, r in zip(located, positions, remote, strict=True)
        ]
        fetching = rows.split.cold_position(distinct) % local_ranks
        by_rank = [(fetching == rank).nonzero().squeeze(1) for rank in range(local_ranks)]
        found[rows] = WantedRows(mask, RemoteRows(distinct, lists, locations), by_rank)
    return found


@dataclass
class _Merged:
    """The distinct rows of one row set that this rank fetches for the ranks of its machine.

    Attributes:
        mask: the tables that any rank of the machine reads, as bits.
        internal: int64, the internal rows, ascending.
        by_partner: for each rank of another machine, the positions in `internal` of the rows that
            it sends.
        buffers: the received rows by table name: uint8 [rows, row bytes].
    """

    mask: int
    internal: torch.Tensor
    by_partner: dict[int, torch.Tensor]
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)


class ExchangeRound:
    """Fetches rows in two steps (WholeGraph III-D's hierarchy).

    The machine that stores a row sends it once to each machine that needs it, to one rank there,
    which passes it on to the ranks that want it. The number of a row determines which rank sends
    and which rank receives it.

    :meth:`plan`, :meth:`send` and :meth:`complete` follow each other; each is collective over all
    ranks of all machines. Threads may work on several rounds at the same time.
    """

    def __init__(
        self,
        layout: Layout,
        network: ExchangeNetwork,
        traffic: TrafficCounter,
        loader: str,
        number: int,
        *,
        by_nccl: bool,
    ) -> None:
        """
        Args:
            loader: the loader and the tables that it reads, for errors.
            number: the number of the round, the same on all ranks.
            by_nccl: whether rows go from GPU to GPU; otherwise through host memory.
        """
        self._layout = layout
        self._network = network
        self._traffic = traffic
        self._loader = loader
        self._number = number
        self._by_nccl = by_nccl
        group = network.group
        self._machines = group.machines
        self._device = group.device
        self._local_ranks = self._machines.local_ranks
        self._local_rank = self._local_ranks.index(self._machines.rank)
        self._others = [r for r in self._local_ranks if r != self._machines.rank]
        self._partners = _partners(self._machines.ranks, self._machines.index, self._local_rank)
        self._wanted: Mapping[RowSet, WantedRows] = {}
        # By row set and by rank of this machine: the rows that the rank wants this rank to fetch.
        self._asked: dict[RowSet, dict[int, torch.Tensor]] = {}
        self._merged: dict[RowSet, _Merged] = {}
        # By rank of another machine and by row set: the tables as bits, and the internal rows.
        self._requests: dict[int, dict[RowSet, tuple[int, torch.Tensor]]] = {}
        self._planned: torch.cuda.Event | None = None
        self._rows: Transfer | None = None
        self._is_complete = False
        self._completing = threading.Lock()

    def plan(
        self,
        wanted: Mapping[RowSet, WantedRows],
        headers: Mapping[int, Mapping[RowSet, tuple[int, int]]],
    ) -> None:
        """Exchanges the ids of the wanted rows, through host memory. Synchronises with a GPU.

        Args:
            wanted: the rows that this rank wants.
            headers: for each rank of this machine and each row set: the tables as bits, and the
                number of rows that the rank wants this rank to fetch.
        """
        self._wanted, self._headers = wanted, headers
        self._merge()
        self._requests = self._exchange_requests()
        if self._device.type == "cuda":
            self._planned = torch.cuda.current_stream(self._device).record_event()

    @property
    def rows(self) -> dict[RowSet, RemoteRows]:
        """This rank's rows."""
        return {rows: wanted.rows for rows, wanted in self._wanted.items()}

    @property
    def is_sent(self) -> bool:
        """Whether :meth:`send` has been called."""
        return self._rows is not None or self._is_complete

    @property
    def is_complete(self) -> bool:
        """Whether the rows have arrived; with NCCL, whether all transfers are in the stream."""
        return self._is_complete

    def send(self) -> None:
        """Begins to send and receive the rows. With NCCL, all of it is launched in the current
        stream, and the host waits for nothing.
        """
        self._use_in_current_stream()
        self._rows = self._serve(self._requests)
        if self._by_nccl:
            self.complete()

    def complete(self) -> None:
        """Waits for the rows, and passes them on to the ranks of this machine that want them.

        Idempotent; several threads may call it at the same time.
        """
        with self._completing:
            if self._is_complete:
                return
            assert self._rows is not None
            received = self._rows.wait()
            self._allocate_merged()
            for partner in self._partners:
                pieces = self._pieces_from(partner)
                self._count_received(pieces)
                if partner in received:
                    sizes = [(positions.numel(), table.row_bytes) for _, table, positions in pieces]
                    parts = unpack(received[partner], sizes)
                    for (rows, table, positions), part in zip(pieces, parts, strict=True):
                        copy_rows(self._merged[rows].buffers[table.name], positions, part)
            self._hand_out()
            # Frees the rows of other ranks.
            self._merged, self._asked, self._requests, self._rows = {}, {}, {}, None
            self._is_complete = True

    def _use_in_current_stream(self) -> None:
        """Makes the current stream wait for the plan, and keeps the plan's memory until the stream
        has used it.
        """
        if self._planned is None:
            return
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._planned)
        for tensor in self._plan_tensors():
            tensor.record_stream(stream)

    def _plan_tensors(self) -> Iterator[torch.Tensor]:
        for wanted in self._wanted.values():
            yield from wanted.rows.tensors()
            yield from wanted.by_rank
        for merged in self._merged.values():
            yield merged.internal
            yield from merged.by_partner.values()
        for asked in self._asked.values():
            yield from asked.values()
        for sets in self._requests.values():
            yield from (internal for _, internal in sets.values())

    def _allocate_merged(self) -> None:
        """Allocates memory for the rows that this rank fetches for its machine."""
        for rows, merged in self._merged.items():
            for table in self._layout.named(rows, merged.mask):
                shape = (merged.internal.numel(), table.row_bytes)
                merged.buffers[table.name] = torch.empty(
                    shape, dtype=torch.uint8, device=self._device
                )

    def _transfer(
        self,
        parts: Mapping[int, torch.Tensor],
        sizes: Mapping[int, int],
        message: int,
        *,
        by_nccl: bool = False,
    ) -> Transfer:
        tag = _tag(self._number, message)
        return self._network.transfer(parts, sizes, tag, self._loader, by_nccl=by_nccl)

    def _merge(self) -> None:
        """Merges the rows that the ranks of this machine want this rank to fetch."""
        ids = {
            rank: torch.cat(
                [w.rows.internal[w.by_rank[i]] for w in self._wanted.values()] or [self._no_ids()]
            )
            for i, rank in enumerate(self._local_ranks)
        }
        sizes = {
            rank: _WORD * sum(count for _, count in self._headers[rank].values())
            for rank in self._others
        }
        parts = {rank: ids[rank].view(torch.uint8) for rank in self._others}
        self._traffic.add(local_bytes=sum(part.numel() for part in parts.values()))
        received = self._transfer(parts, sizes, _LOCAL_IDS).wait()
        messages = {rank: received[rank].view(torch.int64) for rank in received}
        messages[self._machines.rank] = ids[self._machines.rank]
        self._asked = {s: {} for s in self._layout.sets}
        for rank, message in messages.items():
            counts = [count for _, count in self._headers[rank].values()]
            for rows, part in zip(self._headers[rank], torch.split(message, counts), strict=True):
                self._asked[rows][rank] = part
        self._merged = {s: self._merged_set(s) for s in self._layout.sets}

    def _merged_set(self, rows: RowSet) -> _Merged:
        parts = list(self._asked[rows].values())
        distinct = torch.unique(torch.cat(parts)) if parts else self._no_ids()
        mask = 0
        for header in self._headers.values():
            mask |= header.get(rows, (0, 0))[0]
        return _Merged(mask, distinct, self._by_partner(rows, distinct))

    def _by_partner(self, rows: RowSet, distinct: torch.Tensor) -> dict[int, torch.Tensor]:
        machines, positions = rows.split.machine_of(distinct), rows.split.cold_position(distinct)
        by_partner = {}
        for partner in self._partners:
            machine = self._machines.machine_of(partner)
            ranks = self._machines.ranks[machine]
            sent = (machines == machine) & (positions % len(ranks) == ranks.index(partner))
            by_partner[partner] = sent.nonzero().squeeze(1)
        return by_partner

    def _exchange_requests(self) -> dict[int, dict[RowSet, tuple[int, torch.Tensor]]]:
        """Sends the wanted ids to the ranks that have the rows, and receives theirs.

        Returns:
            The requests of each rank of another machine, by row set: the tables as bits, and the
            internal rows.
        """
        words = 2 * len(self._layout.sets)
        counts = {
            p: torch.tensor(
                [[m.mask, m.by_partner[p].numel()] for m in self._merged.values()], device="cpu"
            )
            for p in self._partners
        }
        sizes = dict.fromkeys(self._partners, _WORD * words)
        parts = {p: c.view(-1).view(torch.uint8) for p, c in counts.items()}
        counts_transfer = self._transfer(parts, sizes, _COUNTS)
        ids = {
            p: torch.cat([m.internal[m.by_partner[p]] for m in self._merged.values()])
            for p in self._partners
        }
        numbers = {
            p: message.view(torch.int64).view(-1, 2).tolist()
            for p, message in counts_transfer.wait(_CPU).items()
        }
        sent = sum(part.numel() for part in ids.values())
        received = {p: sum(count for _, count in numbers[p]) for p in self._partners}
        self._traffic.add(
            ids_sent=sent,
            ids_received=sum(received.values()),
            bytes_sent=_WORD * (sent + words * len(self._partners)),
            bytes_received=_WORD * (sum(received.values()) + words * len(self._partners)),
        )
        messages = self._transfer(
            {p: part.view(torch.uint8) for p, part in ids.items()},
            {p: _WORD * count for p, count in received.items()},
            _IDS,
        ).wait()
        requests = {}
        for p in self._partners:
            message = messages[p].view(torch.int64) if p in messages else self._no_ids()
            split = torch.split(message, [count for _, count in numbers[p]])
            requests[p] = {
                s: (mask, part)
                for s, (mask, _), part in zip(self._layout.sets, numbers[p], split, strict=True)
            }
        return requests

    def _serve(self, requests: Mapping[int, Mapping[RowSet, tuple[int, torch.Tensor]]]) -> Transfer:
        """Begins to send the requested rows, and to receive this rank's."""
        parts = {}
        for partner, sets in requests.items():
            pieces = [
                table.local.gather_stored(rows.split.local_row(internal))
                for rows, (mask, internal) in sets.items()
                for table in self._layout.named(rows, mask)
            ]
            self._traffic.add(
                rows_sent=sum(len(piece) for piece in pieces),
                bytes_sent=sum(piece.numel() for piece in pieces),
            )
            parts[partner] = pack(pieces, self._device)
        sizes = {
            p: packed_offsets([(i.numel(), t.row_bytes) for _, t, i in self._pieces_from(p)])[-1]
            for p in self._partners
        }
        return self._transfer(parts, sizes, _ROWS, by_nccl=self._by_nccl)

    def _pieces_from(self, partner: int) -> list[tuple[RowSet, DistributedTable, torch.Tensor]]:
        """Returns the pieces of a partner's message of rows, in order: the row set, the table, and
        the positions in the merged rows.
        """
        return [
            (rows, table, merged.by_partner[partner])
            for rows, merged in self._merged.items()
            for table in self._layout.named(rows, merged.mask)
        ]

    def _count_received(
        self, pieces: Sequence[tuple[RowSet, DistributedTable, torch.Tensor]]
    ) -> None:
        self._traffic.add(
            rows_received=sum(positions.numel() for _, _, positions in pieces),
            bytes_received=sum(p.numel() * table.row_bytes for _, table, p in pieces),
        )

    def _hand_out(self) -> None:
        """Sends the fetched rows to the ranks of this machine, and receives this rank's rows."""
        parts = {
            rank: pack(list(self._wanted_by(rank)), self._device) for rank in self._local_ranks
        }
        expected = {
            rank: [
                (wanted.by_rank[i].numel(), table.row_bytes)
                for rows, wanted in self._wanted.items()
                for table in self._layout.named(rows, wanted.mask)
            ]
            for i, rank in enumerate(self._local_ranks)
        }
        own_part = parts.pop(self._machines.rank)
        self._traffic.add(local_bytes=sum(part.numel() for part in parts.values()))
        sizes = {rank: packed_offsets(expected[rank])[-1] for rank in self._others}
        received = self._transfer(parts, sizes, _LOCAL_ROWS, by_nccl=self._by_nccl).wait()
        received[self._machines.rank] = own_part
        self._store_received(received, expected)

    def _wanted_by(self, rank: int) -> Iterator[torch.Tensor]:
        """Yields the rows that a rank of this machine gets from this rank, table by table."""
        for rows, (mask, _) in self._headers[rank].items():
            merged = self._merged[rows]
            slots = torch.searchsorted(merged.internal, self._asked[rows].get(rank, self._no_ids()))
            for table in self._layout.named(rows, mask):
                yield select_rows(merged.buffers[table.name], slots)

    def _store_received(
        self, received: Mapping[int, torch.Tensor], expected: Mapping[int, list[tuple[int, int]]]
    ) -> None:
        """Copies the received rows to the batch's rows; `expected`: their number and row bytes."""
        for rows, wanted in self._wanted.items():
            for table in self._layout.named(rows, wanted.mask):
                shape = (wanted.rows.internal.numel(), table.row_bytes)
                wanted.rows.values[table.name] = torch.empty(
                    shape, dtype=torch.uint8, device=self._device
                )
        for i, rank in enumerate(self._local_ranks):
            if rank not in received:
                continue
            pieces = iter(unpack(received[rank], expected[rank]))
            for rows, wanted in self._wanted.items():
                for table in self._layout.named(rows, wanted.mask):
                    copy_rows(wanted.rows.values[table.name], wanted.by_rank[i], next(pieces))

    def _no_ids(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.int64, device=self._device)


def _partners(ranks: Sequence[Sequence[int]], index: int, local_rank: int) -> list[int]:
    """Returns the ranks of other machines that exchange rows with a rank.

    Cold row number t of a machine with S ranks is sent by its rank ``t % S``, and received by rank
    ``t % R`` of a machine with R ranks.
    """
    return [
        rank
        for machine, others in enumerate(ranks)
        for position, rank in enumerate(others)
        if machine != index and (position - local_rank) % gcd(len(others), len(ranks[index])) == 0
    ]
