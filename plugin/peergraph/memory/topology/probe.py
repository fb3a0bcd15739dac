"""Measures links by timed reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

import peergraph._C as _C
from peergraph.memory.device.launching import launch_on
from peergraph.memory.device.machine_cache import host_reads_file
from peergraph.memory.device.stopwatch import Stopwatch
from peergraph.memory.group.group import Group
from peergraph.memory.region.free_memory import free_host_memory
from peergraph.memory.region.region import SharedRegion
from peergraph.memory.table.host_read_speeds import Speeds, save_speeds
from peergraph.memory.table.id_list import id_list
from peergraph.memory.table.table import Table
from peergraph.memory.table.table_view import table_view
from peergraph.memory.table.tiers import Tiers
from peergraph.memory.topology.rates import Rates

_SCATTERED = 32  # bytes of a read in random order
_STAGED_ROW_BYTES = (32, 128, 512, 1024)
_DENSE = 1 << 30  # the part of the host's memory that is read in ascending order of address
# The smallest number of bytes of a gather. Gathers of narrow rows read more rows, because otherwise
# the call would take longer than the reads.
_GPU_LEAST_BYTES, _CPU_LEAST_BYTES = 64 << 20, 0
# On a GPU: the rows of a gather, which fill the GPU and take milliseconds from the host; and the
# number of calls that are timed.
_GPU_READS, _GPU_CALLS = 1 << 18, 10
_CPU_READS, _CPU_CALLS = 1 << 13, 3
# The tables must not fit into the caches of address translation, because real tables are larger.
_GPU_BYTES, _HOST_BYTES = 1 << 30, 16 << 30
_CPU_BYTES = 1 << 24


class Probe:
    """Allocates memory on each rank and on the host, and measures how fast all ranks read it."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.on_gpu = group.device.type == "cuda"
        self.reads = _GPU_READS if self.on_gpu else _CPU_READS
        self.calls = _GPU_CALLS if self.on_gpu else _CPU_CALLS
        self.least_bytes = _GPU_LEAST_BYTES if self.on_gpu else _CPU_LEAST_BYTES
        size, host = _CPU_BYTES, _CPU_BYTES
        if self.on_gpu:
            size = min(_GPU_BYTES, torch.cuda.mem_get_info(group.device)[0] // 4)
            host = min(_HOST_BYTES, free_host_memory() // 4)
        self.size = min(group.all_gather(size))
        self.shards = SharedRegion.create(self.size, group, mapped="reached")
        self.host_size = max(min(group.all_gather(host)), self.size // 4)
        self.host = SharedRegion.create(self.host_size if group.rank == 0 else 0, group, "cpu")

    def close(self) -> None:
        """Frees the memory. Collective."""
        self.host.close()
        self.shards.close()

    def random_rows(self, row_bytes: int, reads: int) -> Rates:
        """Measures the rates of gathers of `reads` random rows. Collective; synchronises."""
        world, rank, device = self.group.world_size, self.group.rank, self.group.device
        out = torch.empty((reads, row_bytes), dtype=torch.uint8, device=device)
        each = self.size // row_bytes
        tiers, regions = Tiers.all_sharded(each * world), {"sharded": self.shards}
        # Shards out of reach are not read: any address stands for theirs.
        addresses = [base or 0 for base in self.shards.reached]
        view = table_view(tiers, row_bytes, self.group, regions, addresses, None)
        launch = launch_on(device)

        def rate(ids: torch.Tensor) -> float:
            listed = id_list(ids)
            return float(out.numel()) / self._seconds(lambda: _C.gather(view, listed, out, launch))

        # Row k is on rank k % world. In each round every rank reads from a different peer.
        rows = torch.randint(each, (reads,), device=device) * world
        bandwidth = [0.0] * world
        reached = [(rank + shift) % world for shift in range(world)]
        reached = [peer for peer in reached if peer not in self.shards.distant]
        for shift in range(world):
            peer = (rank + shift) % world
            if peer in reached:
                bandwidth[peer] = rate(rows + peer)
            else:  # the other ranks measure
                self.group.barrier()
        ingress = 0.0
        if len(reached) > 1:
            peers = torch.tensor(reached[1:], device=device)
            ingress = rate(rows + peers[torch.arange(reads, device=device) % len(peers)])
        else:
            self.group.barrier()
        by_address = self._on_host(row_bytes, reads, _DENSE).sort().values
        from_host = float(out.numel()) / self._host_seconds(by_address, out, by_address=True)
        everyone = self.group.all_gather((tuple(bandwidth), ingress, from_host))
        return Rates(*zip(*everyone, strict=True))

    def host_reads(self) -> tuple[float, ...]:
        """Measures each GPU's reads per second of host memory in random order. Collective;
        synchronises.
        """
        out = torch.empty((self.reads, _SCATTERED), dtype=torch.uint8, device=self.group.device)
        seconds = self._host_seconds(self._on_host(_SCATTERED, self.reads, self.host_size), out)
        return tuple(self.group.all_gather(self.reads / seconds))

    def choose_host_reads(self) -> tuple[tuple[int, tuple[float, ...]], ...]:
        """Measures how fast this GPU reads host rows in each way, and stores the speeds.

        Measures once with rows that are close together, and once with rows in all of the host
        memory. Collective; synchronises.

        Returns:
            By row bytes: bytes per second of each GPU for rows that are far apart, with CPU threads
            that read all or a share of them.
        """
        if not self.on_gpu:
            return ()
        dense, sparse = (
            {width: self._speeds(width, num_bytes) for width in _STAGED_ROW_BYTES}
            for num_bytes in (_DENSE, self.host_size)
        )
        save_speeds(host_reads_file(self.group.device, self.group.world_size), dense, sparse)
        everyone = self.group.all_gather(
            {width: max(s.staged, s.both) for width, s in sparse.items()}
        )
        return tuple((w, tuple(rates[w] for rates in everyone)) for w in _STAGED_ROW_BYTES)

    def _speeds(self, width: int, num_bytes: int) -> Speeds:
        """Measures the speeds for random rows in the first `num_bytes` bytes of the host memory."""
        ids = self._on_host(width, self.reads, num_bytes)
        out = torch.empty((self.reads, width), dtype=torch.uint8, device=self.group.device)
        tiers, regions = Tiers.all_host(self.host_size // width), {"host": self.host}

        def speed(share: float) -> float:
            shape = (tiers.rows, width)
            table = Table(shape, torch.uint8, tiers, self.group, regions, None, staged=share)
            return out.numel() / self._seconds(partial(table.gather, ids, out))

        alone = Speeds(speed(0.0), speed(1.0), 0.0)
        return alone._replace(both=speed(alone.both_share))

    def _on_host(self, row_bytes: int, reads: int, num_bytes: int) -> torch.Tensor:
        """Returns random rows in the first `num_bytes` bytes of the host memory."""
        rows = min(num_bytes, self.host_size) // row_bytes
        return torch.randint(rows, (reads,), device=self.group.device)

    def _host_seconds(
        self, ids: torch.Tensor, out: torch.Tensor, *, by_address: bool = False
    ) -> float:
        """Returns the seconds of one gather from host memory. The ids are not sorted.

        `by_address` says that they are in ascending order already.
        """
        out_index = torch.arange(ids.numel(), device=ids.device) if by_address else None
        host_begin = ids.new_zeros(1) if by_address else None
        rows = self.host_size // out.shape[1]
        table = Table(
            (rows, out.shape[1]),
            torch.uint8,
            Tiers.all_host(rows),
            self.group,
            {"host": self.host},
            None,
        )
        launch = launch_on(self.group.device)
        return self._seconds(
            lambda: _C.gather(table.view, id_list(ids, out_index, host_begin), out, launch)
        )

    def _seconds(self, run: Callable[[], object]) -> float:
        """Returns the seconds of one call while all ranks make it. Collective; synchronises."""
        run()
        self.group.barrier()
        watch = Stopwatch(self.group.device)
        with watch.running():
            for _ in range(self.calls):
                run()
        return watch.seconds() / self.calls
