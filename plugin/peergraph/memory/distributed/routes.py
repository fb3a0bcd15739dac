"""Routes: the rank that sends a row to another machine, and the rank that receives it there."""

from __future__ import annotations

from bisect import bisect
from itertools import pairwise
from math import lcm

import numpy as np
import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.distributed.machine_split import MachineSplit
from peergraph.memory.group.machines import Machines

# The bits of a key that hold the number of a row.
_NUMBER_BITS = _C.row_number_bits


class Routes:
    """The ranks that transfer rows from other machines to this one.

    Cold row number t of a machine with S ranks is sent by its rank ``t % S``, and fetched by rank
    ``t % R`` of a machine with R ranks. The two ranks are the route of the row.

    The key of a row is made of its route and its number. In an ascending list of keys, the rows
    that one rank fetches are contiguous, and so are those of them that one rank sends. Such lists
    are therefore messages, and rows that are received in this order need not be sorted.
    """

    def __init__(self, machines: Machines, device: torch.device) -> None:
        """
        Args:
            machines: the machines and their ranks.
            device: the device of the tables.
        """
        num_ranks = len(machines.local_ranks)
        self._machines = machines.count
        # Cold rows whose positions differ by a multiple of it have the same route.
        self._period = machines.count * lcm(*map(len, machines.ranks))
        by_position = {}
        for cold in range(self._period):
            number, machine = divmod(cold, machines.count)
            if machine != machines.index:
                senders = machines.ranks[machine]
                by_position[cold] = number % num_ranks, senders[number % len(senders)]
        routes = sorted(set(by_position.values()))
        firsts = [
            routes.index(by_position[c]) if c in by_position else 0 for c in range(self._period)
        ]
        self._first_keys = torch.tensor(firsts, device=device) << _NUMBER_BITS
        self.view = _C.RowRoutes(self._first_keys, len(routes))
        """The routes, as kernels take them."""
        mine = machines.local_ranks.index(machines.rank)
        self.partners = [sender for fetcher, sender in routes if fetcher == mine]
        """The ranks of other machines that exchange rows with this rank, ascending."""
        begins = [bisect(routes, (fetcher,)) for fetcher in range(num_ranks + 1)]
        self.fetcher_bounds = np.array(begins) << _NUMBER_BITS
        """The bounds of the keys of the rows that each rank of this machine fetches."""
        self.partner_bounds = np.arange(begins[mine], begins[mine + 1] + 1) << _NUMBER_BITS
        """The bounds of the keys of the rows that this rank fetches from each partner."""

    def keys(self, split: MachineSplit, internal: Tensor) -> Tensor:
        """Returns the key of each internal row; other machines have the rows.

        Args:
            internal: int64, on the device of the tables.
        """
        cold = internal - split.hot
        numbers = torch.div(cold, self._machines, rounding_mode="floor")
        return numbers.add_(self._first_keys[cold.remainder_(self._period)])


def split_keys(keys: np.ndarray, bounds: np.ndarray) -> list[np.ndarray]:
    """Returns the keys between each two bounds.

    Args:
        keys: ascending.
        bounds: ascending; the last one is larger than all keys.
    """
    ends = np.searchsorted(keys, bounds).tolist()
    return [keys[begin:end] for begin, end in pairwise(ends)]


def numbers_of(keys: np.ndarray) -> np.ndarray:
    """Returns the number of each row among the cold rows of its machine."""
    return keys & ((1 << _NUMBER_BITS) - 1)
