"""Defines which partitions each GPU stores, and from which GPU it reads each one (XGNN 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peergraph.json_fields import Fields


@dataclass(frozen=True)
class Partitions:
    """A placement of n equal partitions of the sharded rows on n GPUs.

    Args:
        policy: the name of the method that found this placement.
        stored: by GPU, the partitions in its memory, ascending.
        source: by GPU and partition, the GPU that it reads the partition from.
    """

    policy: str
    stored: tuple[tuple[int, ...], ...]
    source: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        """Raises ValueError unless each GPU reads each partition from a GPU that stores it."""
        count = len(self.stored)
        for gpu, parts in enumerate(self.stored):
            if any(not 0 <= part < count for part in parts) or len(set(parts)) < len(parts):
                raise ValueError(
                    f"stored[{gpu}] must be different partitions of 0..{count - 1}, got {parts}"
                )
        if len(self.source) != count:
            raise ValueError(f"source must be given for {count} GPUs, got {len(self.source)}")
        for gpu, holders in enumerate(self.source):
            if len(holders) != count:
                raise ValueError(
                    f"source[{gpu}] must name a GPU for each of {count} partitions, got {holders}"
                )
            for part, holder in enumerate(holders):
                if not 0 <= holder < count or part not in self.stored[holder]:
                    raise ValueError(
                        f"source[{gpu}][{part}] must be a GPU that stores the partition, "
                        f"got {holder}"
                    )

    @property
    def num_gpus(self) -> int:
        """The number of GPUs, which is the number of partitions."""
        return len(self.stored)

    @property
    def copies(self) -> int:
        """The largest number of partitions on one GPU. Every GPU reserves memory for as many."""
        return max(len(parts) for parts in self.stored)

    @property
    def stored_share(self) -> float:
        """The share of the sharded rows that each GPU reserves memory for."""
        return self.copies / self.num_gpus

    @classmethod
    def from_fields(cls, values: Fields) -> Partitions:
        """Reads partitions from JSON fields. Raises ValueError for invalid ones."""
        values.only("policy", "stored", "source")
        stored, source = (values.integer_lists(name) for name in ("stored", "source"))
        return cls(values.text("policy"), stored, source)

    def held_bytes(self, gpu: int, sizes: Sequence[int]) -> int:
        """Returns the bytes of all partitions on a GPU, given the bytes of each partition."""
        return sum(sizes[part] for part in self.stored[gpu])

    def offset(self, gpu: int, part: int, sizes: Sequence[int]) -> int:
        """Returns the offset of a partition in the memory of a GPU that stores it."""
        return sum(sizes[p] for p in self.stored[gpu] if p < part)

    def read_addresses(
        self, gpu: int, bases: Sequence[int | None], sizes: Sequence[int]
    ) -> list[int]:
        """Returns, for each partition, the address of the copy that a GPU reads; 0 if it is empty.

        Args:
            gpu: the GPU that reads.
            bases: the address of each GPU's memory; None: this GPU does not reach it.
            sizes: the bytes of each partition.

        Raises RuntimeError if the GPU reads a partition from a GPU that it does not reach.
        """
        addresses = []
        for part, holder in enumerate(self.source[gpu]):
            base = bases[holder]
            if base is None and sizes[part]:
                raise RuntimeError(f"GPU {gpu} reads rows from GPU {holder}, out of its reach")
            addresses.append(self._address(holder, part, base, sizes))
        return addresses

    def write_addresses(self, bases: Sequence[int | None], sizes: Sequence[int]) -> list[list[int]]:
        """Returns addresses for writers, who must write to every copy of every partition.

        Args:
            bases: the address of each GPU's memory; None: the writer does not reach it.
            sizes: the bytes of each partition.

        Returns:
            Lists with the address of one copy of each partition; 0 if none is in reach. Every copy
            in reach is in at least one list; there are as many lists as the partition with the most
            copies has.
        """
        copies = [
            [
                self._address(gpu, part, bases[gpu], sizes)
                for gpu, parts in enumerate(self.stored)
                if part in parts and bases[gpu] is not None
            ]
            or [0]
            for part in range(self.num_gpus)
        ]
        return [[c[min(k, len(c) - 1)] for c in copies] for k in range(max(map(len, copies)))]

    def held_addresses(self, gpu: int, base: int | None, sizes: Sequence[int]) -> list[int]:
        """Returns, for each partition, the address of its copy on a GPU; 0 if the GPU has none.

        Args:
            base: the address of the GPU's memory; None: it has none.
            sizes: the bytes of each partition.
        """
        return [
            self._address(gpu, part, base, sizes) if part in self.stored[gpu] else 0
            for part in range(self.num_gpus)
        ]

    def _address(self, gpu: int, part: int, base: int | None, sizes: Sequence[int]) -> int:
        return base + self.offset(gpu, part, sizes) if base is not None and sizes[part] else 0

    def access_counts(self) -> list[list[int]]:
        """Returns ``[n][n]``: how many partitions GPU i reads from GPU j (XGNN's AccessCnt)."""
        return [[row.count(j) for j in range(self.num_gpus)] for row in self.source]

    def min_bandwidth(self, bandwidth: Sequence[Sequence[float]]) -> float:
        """Returns the smallest bandwidth per partition of all used links (XGNN's MinBandwidth)."""
        return min(
            bandwidth[i][j] / count
            for i, counts in enumerate(self.access_counts())
            for j, count in enumerate(counts)
            if count
        )

    def __str__(self) -> str:
        lines = [
            f"partitions of sharded rows by {self.policy!r}: {self.num_gpus}, at most "
            f"{self.copies} on each GPU"
        ]
        if self.num_gpus == 1:
            return f"partitions of sharded rows by {self.policy!r}: one GPU has them all"
        each = tuple(range(self.num_gpus))
        if self.copies == 1 and all(source == each for source in self.source):
            return f"{lines[0]}, every GPU reads them all where they are"
        for gpu, (stored, source) in enumerate(zip(self.stored, self.source, strict=True)):
            reads = ", ".join(f"{p} from GPU {g}" for p, g in enumerate(source) if g != gpu)
            parts = " ".join(map(str, stored))
            lines.append(f"  GPU {gpu} stores {parts}" + (f"; reads {reads}" if reads else ""))
        return "\n".join(lines)


def one_partition_per_gpu(count: int) -> Partitions:
    """Returns the placement that stores partition i on GPU i. All GPUs must reach each other."""
    each = tuple(range(count))
    return Partitions("one each", tuple((gpu,) for gpu in each), (each,) * count)


def choose_sources(
    stored: list[int], links: tuple[float, ...], gpu: int
) -> tuple[list[int], float]:
    """Chooses from which GPU one GPU reads each partition, so that its slowest read is fastest.

    The GPU reads partitions that it stores from its own memory. The others are matched to links. At
    a given rate, a link carries as many partitions as its bandwidth allows. The result is the
    matching with the highest rate at which all partitions find a link.

    Args:
        stored: by GPU, its partitions as a bit set.
        links: the bandwidth from each GPU.
        gpu: the GPU that reads.

    Returns:
        The GPU from which each partition is read, and the smallest bandwidth per partition of all
        links in use.
    """
    count = len(stored)
    source = [gpu if stored[gpu] >> part & 1 else -1 for part in range(count)]
    remote = [part for part in range(count) if source[part] < 0]
    holders = {
        part: [j for j in range(count) if j != gpu and links[j] > 0 and stored[j] >> part & 1]
        for part in remote
    }
    local = links[gpu] / (count - len(remote)) if len(remote) < count else float("inf")
    if not remote:
        return source, local
    peers = [j for j in range(count) if j != gpu and links[j] > 0]
    rates = sorted({links[j] / k for j in peers for k in range(1, len(remote) + 1)})
    low, high = 0, len(rates) - 1
    best = _match(holders, links, rates[0])
    assert best is not None, "every link carries all partitions at the lowest rate"
    while low < high:
        middle = (low + high + 1) // 2
        match = _match(holders, links, rates[middle])
        if match is None:
            high = middle - 1
        else:
            low, best = middle, match
    for part, j in best.items():
        source[part] = j
    return source, min(local, rates[low])


def _match(
    holders: dict[int, list[int]], links: tuple[float, ...], rate: float
) -> dict[int, int] | None:
    """Finds a GPU for each partition so that no link carries more partitions than `rate` allows.
    Uses augmenting paths. Returns None if there is no such assignment.
    """
    # `rate` is a quotient of bandwidths: a rounding error must not reduce the number of places.
    room = [int(bandwidth / rate + 1e-9) for bandwidth in links]
    chosen: dict[int, int] = {}

    def place(part: int, tried: set[int]) -> bool:
        for j in holders[part]:
            if j in tried:
                continue
            tried.add(j)
            assigned = [p for p, g in chosen.items() if g == j]
            if len(assigned) < room[j] or (room[j] and any(place(p, tried) for p in assigned)):
                chosen[part] = j
                return True
        return False

    return chosen if all(place(part, set()) for part in holders) else None
