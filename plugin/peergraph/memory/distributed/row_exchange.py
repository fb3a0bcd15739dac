"""The exchange of rows between machines: one for the tables of a store."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import util

import torch

from peergraph.memory.distributed.distributed_table import DistributedTable
from peergraph.memory.distributed.exchange_network import ExchangeNetwork
from peergraph.memory.distributed.exchange_session import ExchangeSession
from peergraph.memory.distributed.exchange_streams import ExchangeStreams
from peergraph.memory.distributed.layout import Layout
from peergraph.memory.distributed.load_kernels import load_kernels
from peergraph.memory.distributed.network_traffic import NetworkTraffic, TrafficCounter
from peergraph.memory.distributed.routes import Routes
from peergraph.memory.group.departure import error_at_exit
from peergraph.memory.group.group import Group


class RowExchange:
    """Brings rows of distributed tables to the batches that need them.

    A loader opens a session for each iteration. Sessions may overlap if all ranks open, read and
    leave them in the same order.
    """

    def __init__(
        self,
        group: Group,
        tables: Sequence[DistributedTable],
        name: str,
        *,
        batches_per_round: int = 1,
    ) -> None:
        """Connects all ranks of all machines. Collective; synchronises with a GPU.

        Args:
            group: the ranks of this machine.
            tables: the distributed tables of one store, in the same order on all ranks. Their rows
                are loaded.
            name: a name that no other exchange of these ranks has.
            batches_per_round: the number of batches whose rows a loader exchanges together; the
                same on all ranks.

        Raises:
            PeerLostError: a rank did not join in time.
        """
        self.batches_per_round = batches_per_round
        self._group = group
        self._name = name
        self._layout = Layout(tables, Routes(group.machines, group.device))
        self._traffic = TrafficCounter()
        self._networks: list[ExchangeNetwork] = []
        self._sessions: list[ExchangeSession] = []
        self._is_closed = False
        self.streams = ExchangeStreams.create(group.device)
        """The streams of the work that is done ahead of training."""
        self._networks.append(self._connect())
        for table in tables:
            table.connect(self)
        # Runs before the farewell to the ranks of the machine.
        self._at_exit = util.Finalize(self, _finish_at_exit, (weakref.ref(self),), exitpriority=0)
        if group.device.type == "cuda":
            load_kernels(self.open, tables, self.streams.rows)
            self._join_left()
            self._traffic = TrafficCounter()

    @property
    def traffic(self) -> NetworkTraffic:
        """The traffic of this rank so far. Not collective."""
        return self._traffic.total

    def open(self, loader: str) -> ExchangeSession:
        """Opens a session. Every rank of every machine opens the same sessions in the same order.

        First waits until all ranks have finished the sessions that this rank has left.

        Args:
            loader: the loader and the tables that it reads, as text; the same on all ranks.

        Raises:
            RuntimeError: the exchange is closed.
            PeerLostError: an earlier session failed, or the ranks did not connect.
        """
        if self._is_closed:
            raise RuntimeError("this store has been closed")
        self._join_left()
        in_use = [session.network for session in self._sessions]
        network = next((n for n in self._networks if n not in in_use), None)
        if network is None:
            network = self._connect()
            self._networks.append(network)
        for stream in self.streams:
            if stream is not None:
                # The current stream may still be writing rows of the tables. The other streams
                # read these rows, for other ranks too.
                stream.wait_stream(torch.cuda.current_stream(self._group.device))
        session = ExchangeSession(loader, self._layout, network, self._traffic, self.streams)
        self._sessions.append(session)
        return session

    def close(self) -> None:
        """Leaves all sessions, waits until the other ranks have finished them too, and closes
        the connections.

        Idempotent. If an error has ended a session, raises this error after closing the rest.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._at_exit.cancel()
        try:
            for session in self._sessions:
                session.leave()
            self._join_left()
        finally:
            for network in self._networks:
                network.close()

    def _connect(self) -> ExchangeNetwork:
        number = len(self._networks)
        open_already = f" ({number} others are being iterated on this rank)" if number else ""
        return ExchangeNetwork(
            self._group, f"{self._name}/{number}", f"the exchange of rows{open_already}"
        )

    def _join_left(self) -> None:
        for session in list(self._sessions):
            if session.left or session.broken:
                self._sessions.remove(session)
                session.leave()
                session.join()

    def _answer_to_the_end(self) -> None:
        for session in list(self._sessions):
            session.leave()
            session.join()


def _finish_at_exit(exchange: weakref.ref[RowExchange]) -> None:
    """Serves the other ranks until they have finished, if this process ends without an error."""
    open_exchange = exchange()
    if open_exchange is not None and error_at_exit() is None:
        # The errors of the other ranks name the cause.
        with suppress(Exception):
            open_exchange._answer_to_the_end()
