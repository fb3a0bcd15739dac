"""Finds the ranks of this host through torch.distributed's store, and connects to each of them.

Anyone who reaches that store can read and write it. Therefore nothing in it is unpickled: it
contains names, which are checked, and the ranks of a host then authenticate each other.
"""

from __future__ import annotations

import json
import queue
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from peergraph.errors import PeerLostError
from peergraph.memory.group.alarm import Alarm
from peergraph.memory.group.calls import Calls
from peergraph.memory.group.channel import Channel
from peergraph.memory.group.daemon_threads import start_daemon
from peergraph.memory.group.departure import send_farewell_at_exit
from peergraph.memory.group.handshake import Endpoint, Handshake, Listener
from peergraph.memory.group.heartbeat import Heartbeat
from peergraph.memory.group.machines import Machines, Place
from peergraph.memory.group.peers import Peers
from peergraph.memory.group.process import host_identity, host_name
from peergraph.memory.group.rank_names import name_ranks
from peergraph.memory.group.store_client import store_client
from peergraph.memory.group.watcher import Watcher

T = TypeVar("T")

_FIRST_POLL_S, _LAST_POLL_S = 1e-4, 5e-3
# Additional time for a store that answers late.
_GRACE_S = 1.0
_MOST_BYTES = 4096


@dataclass(frozen=True)
class Joined:
    """This process among the ranks of its host."""

    rank: int
    world_size: int
    calls: Calls
    channel: Channel | None
    """None if this is the only rank of all machines."""
    machines: Machines
    shared: dict[Any, Any] = field(default_factory=dict)
    """See :attr:`Group.shared`."""

    def watch(self, timeout: float) -> None:
        """Starts to watch for the death of other ranks.

        Args:
            timeout: seconds after which a machine without a sign of life is lost.
        """
        if self.channel is None:
            return
        assert _latest.process_group is not None
        peers = self.channel.peers
        alarm = Alarm(peers, _latest.process_group)
        if self.machines.count > 1:
            heartbeat = Heartbeat(self.machines, peers, alarm, timeout)
            peers.when_lost = heartbeat.report
        if peers.connections:
            Watcher(peers, alarm)


class _Latest:
    """The group that this process has joined for the latest process group of torch."""

    process_group: weakref.ref[Any] | None = None
    joined: Joined | None = None
    error: PeerLostError | None = None


_latest = _Latest()


def join(timeout: float, watch: bool) -> Joined:
    """Finds the ranks of this host, once for each process group. Collective.

    Args:
        timeout: seconds to wait for the other ranks.
        watch: whether to watch for the death of other ranks from then on.

    Raises PeerLostError if a rank does not join, in this call and in later calls.
    """
    world = dist.group.WORLD
    if _latest.process_group is None or _latest.process_group() is not world:
        _latest.process_group = weakref.ref(world)
        _latest.joined, _latest.error = None, None
    if _latest.error is not None:
        raise PeerLostError(str(_latest.error))
    if _latest.joined is None:
        try:
            _latest.joined = _meet(timeout)
            if watch:
                _latest.joined.watch(timeout)
        except PeerLostError as error:
            _latest.error = error
            raise
        except RuntimeError as error:
            _latest.error = PeerLostError(f"the store of torch.distributed was lost: {error}")
            raise _latest.error from error
        except BaseException as error:
            _latest.error = PeerLostError(f"joining was broken off: {type(error).__name__}")
            raise
    return _latest.joined


def _meet(timeout: float) -> Joined:
    deadline = time.monotonic() + timeout
    store = dist.distributed_c10d._get_default_store()
    rank, size = dist.get_rank(), dist.get_world_size()
    listener = Listener()
    try:
        host = host_identity()
        # The GPUs of a host are one clique.
        place = {"host": host, "clique": host, "name": host_name()}
        text = json.dumps({**place, "endpoint": listener.endpoint.to_dict()})
        texts = _call_with_deadline(
            lambda: _exchange(store, rank, size, text, deadline, timeout), deadline, timeout
        )
        everyone = [_parse(r, text) for r, text in enumerate(texts)]
        machines = Machines(rank, [place for place, _ in everyone])
        if machines.count > 1:
            # The name of a socket is random: other runs and restarts of this run have other names.
            client = store_client(store, f"peergraph/{everyone[0][1].name}")
            machines = Machines(rank, [place for place, _ in everyone], client)
        local = machines.local_ranks
        names = machines.rank_names()
        if size == 1:
            return Joined(0, 1, Calls(), None, machines)
        local_rank = local.index(rank)
        handshake = Handshake(local_rank, [everyone[r][1] for r in local], listener, names)
        connections = handshake.connect(timeout, deadline)
    finally:
        listener.close()
    send_farewell_at_exit()
    channel = Channel(Peers(local_rank, connections, names, handshake.log))
    return Joined(local_rank, len(local), Calls(), channel, machines)


def _call_with_deadline(work: Callable[[], T], deadline: float, timeout: float) -> T:
    """Returns the result of `work`; raises PeerLostError after the deadline.

    If the rank that serves the store is stopped, calls of the store have no time limit, and signals
    do not end them.
    """
    results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((work(), None))
        except BaseException as error:
            results.put((None, error))

    start_daemon(run, "peergraph rendezvous")
    try:
        result, error = results.get(timeout=max(0.0, deadline - time.monotonic()) + _GRACE_S)
    except queue.Empty:
        raise PeerLostError(
            f"the store of torch.distributed did not answer within {timeout:g} s: is the process "
            "that serves it (rank 0, or the launcher) stopped?"
        ) from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def _exchange(
    store: Store, rank: int, size: int, text: str, deadline: float, timeout: float
) -> list[bytes]:
    """Publishes this rank's text; returns every rank's text."""
    # A store may serve several process groups, one after the other.
    generation = store.add(f"peergraph/joins/{rank}", 1)
    keys = [f"peergraph/{generation}/{r}" for r in range(size)]
    store.set(keys[rank], text)
    missing = _wait(store, keys, deadline)
    if missing:
        raise PeerLostError(f"{name_ranks(missing)} did not join within {timeout:g} s")
    return [store.get(key) for key in keys]


def _wait(store: Store, keys: Sequence[str], deadline: float) -> list[int]:
    """Waits until the keys are set. Returns the positions of keys missing at the deadline."""
    pause = _FIRST_POLL_S
    while not store.check(list(keys)):
        if time.monotonic() >= deadline:
            return [i for i, key in enumerate(keys) if not store.check([key])]
        time.sleep(pause)
        pause = min(2 * pause, _LAST_POLL_S)
    return []


def _parse(rank: int, text: bytes) -> tuple[Place, Endpoint]:
    """Reads a rank's place and endpoint. Raises RuntimeError for any other text."""
    try:
        if len(text) > _MOST_BYTES:
            raise ValueError("it is too long")
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it names no host")
        place = Place(*(values.get(key) for key in Place.__dataclass_fields__))  # type: ignore[arg-type]
        if not all(isinstance(text, str) for text in vars(place).values()):
            raise ValueError("it names no host")
        if not isinstance(values.get("endpoint"), dict):
            raise ValueError("it names no socket")
        return place, Endpoint.from_dict(values["endpoint"])
    except ValueError as error:
        raise RuntimeError(
            f"the entry of rank {rank} in torch.distributed's store is not Peergraph's: {error}"
        ) from error
