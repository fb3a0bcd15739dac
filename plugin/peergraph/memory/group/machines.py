"""The machines that a process group of torch spans, and values that they exchange."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from peergraph.errors import PeerLostError
from peergraph.memory.group.rank_names import RankNames, name_ranks

_POLL_S = 2e-3
# The first rank of a machine gives up before the other ranks give it up.
_PATIENCE = 0.9


class MachineFailedError(Exception):
    """A machine has sent its error instead of the value that another machine waits for."""

    def __init__(self, machine: int, kind: str, text: str) -> None:
        """
        Args:
            machine: the number of the machine that failed.
            kind, text: the type name and the text of its error.
        """
        super().__init__(machine, kind, text)
        self.machine, self.kind, self.text = machine, kind, text

    _KEY = "error of this machine"

    @classmethod
    def encode(cls, error: Exception) -> dict[str, list[str]]:
        """Encodes an error, to be sent instead of a value."""
        return {cls._KEY: [type(error).__name__, str(error)]}

    @classmethod
    def find(cls, values: Sequence[Any]) -> MachineFailedError | None:
        """Returns the first error among the values of all machines; None without errors."""
        for machine, value in enumerate(values):
            if isinstance(value, dict) and cls._KEY in value:
                return cls(machine, *value[cls._KEY])
        return None


@dataclass(frozen=True)
class Place:
    """The place where a rank runs.

    Args:
        host: the identity of the host. Processes with the same host share memory, sockets and
            process numbers.
        clique: the identity of the clique. GPUs with the same clique map each other's memory
            (NVLink, PCIe). A clique is the GPUs of one host; fabric handles would make it wider.
        name: the name of the machine in errors.
    """

    host: str
    clique: str
    name: str


class Machines:
    """The machines of a process group, their ranks, and the index of this machine.

    A machine is a host: ranks that share memory. The ranks of this machine are the node group
    (:class:`peergraph.memory.Group`); :attr:`ranks` are numbers in torch.distributed. Machines are
    numbered by their first rank.
    """

    ranks: tuple[tuple[int, ...], ...]
    """The ranks of each machine, ascending."""
    index: int
    """The index of this machine."""
    rank: int
    """The rank of this process in torch.distributed."""
    cliques: tuple[tuple[int, ...], ...]
    """The ranks of each set of GPUs that map each other's memory."""

    def __init__(self, rank: int, places: Sequence[Place], store: Store | None = None) -> None:
        """
        Args:
            rank: the rank of this process among all ranks.
            places: the places of all ranks.
            store: the store through which the machines exchange values; None: there is one machine.
        """
        self.rank = rank
        self.ranks = _grouped([p.host for p in places])
        self.cliques = _grouped([p.clique for p in places])
        self.index = self.machine_of(rank)
        self._names = [places[ranks[0]].name for ranks in self.ranks]
        self._store = store
        self._exchanges = 0
        self._num_names = 0

    @classmethod
    def alone(cls, rank: int = 0, world_size: int = 1) -> Machines:
        """Returns one machine with `world_size` ranks."""
        return cls(rank, [Place("", "", "")] * world_size)

    @property
    def count(self) -> int:
        """The number of machines."""
        return len(self.ranks)

    @property
    def world_size(self) -> int:
        """The number of ranks of all machines."""
        return sum(map(len, self.ranks))

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks of this machine, in order of their numbers in the node group."""
        return self.ranks[self.index]

    @property
    def is_first_rank(self) -> bool:
        """Whether this process is rank 0 of its machine's node group."""
        return self.rank == self.local_ranks[0]

    @property
    def partners(self) -> list[int]:
        """One rank of each other machine, ascending, to which this rank sends what its machine
        needs once: the rank there whose number is this one's modulo its machine's ranks.
        """
        place = self.local_ranks.index(self.rank)
        others = (ranks for machine, ranks in enumerate(self.ranks) if machine != self.index)
        return sorted(ranks[place % len(ranks)] for ranks in others)

    def machine_of(self, rank: int) -> int:
        """Returns the machine of a rank, numbered as in torch.distributed."""
        return next(m for m, ranks in enumerate(self.ranks) if rank in ranks)

    def name(self, machine: int) -> str:
        """Names a machine, as in "machine 1 (node-b)"."""
        return f"machine {machine} ({self._names[machine]})"

    def describe(self, machine: int) -> str:
        """Names a machine and its ranks, as in "machine 1 (node-b; ranks 4, 5)"."""
        return f"machine {machine} ({self._names[machine]}; {name_ranks(self.ranks[machine])})"

    def rank_names(self) -> RankNames:
        """Returns the names of the ranks of this machine's node group."""
        return RankNames(self.local_ranks, self.name(self.index) if self.count > 1 else None)

    def exchange(self, value: Any, call: str, timeout: float) -> list[Any]:
        """Returns every machine's value, in order of the machines. Collective over the first ranks
        of all machines; other ranks do not call it. See :meth:`Group.all_gather_machines`.

        Args:
            value: a small value of JSON: nothing in torch's store is unpickled.
            call: the collective, for errors.
            timeout: seconds; the other machines must join within 90 % of this time.

        Raises PeerLostError naming the machines that did not join.
        """
        if self._store is None:
            return [value]
        self._exchanges += 1
        deadline = time.monotonic() + _PATIENCE * timeout
        keys = [self._key(self._exchanges, machine) for machine in range(self.count)]
        self._store.set(keys[self.index], json.dumps(value))
        for machine, key in enumerate(keys):
            while not self._store.check([key]):
                if time.monotonic() >= deadline:
                    raise PeerLostError(
                        f"{self.describe(machine)} did not join within {timeout:g} s: {call}"
                    )
                time.sleep(_POLL_S)
        values = [json.loads(self._store.get(key)) for key in keys]
        if self._exchanges > 1:
            # Every machine that has joined this exchange has read the values of the one before.
            self._store.delete_key(self._key(self._exchanges - 1, self.index))
        return values

    def next_name(self) -> str:
        """Returns a new name, the same on all ranks if all call this equally often."""
        self._num_names += 1
        return str(self._num_names)

    def substore(self, name: str) -> Store:
        """Returns a part of torch.distributed's store for a process group between the machines."""
        assert self._store is not None
        return PrefixStore(name, self._store)

    def _key(self, exchange: int, machine: int) -> str:
        return f"exchange/{exchange}/{machine}"

    def __repr__(self) -> str:
        return f"Machines(index={self.index}, ranks={self.ranks})"


def _grouped(identities: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Groups the positions of equal identities, in order of their first position."""
    groups: dict[str, list[int]] = {}
    for position, identity in enumerate(identities):
        groups.setdefault(identity, []).append(position)
    return tuple(map(tuple, groups.values()))
