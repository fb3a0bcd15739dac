"""The links of a machine: bandwidths and latencies between GPUs and to the host."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from peergraph.json_fields import Fields, parse_json
from peergraph.memory.topology.rates import Matrix, Rates, Vector, mix, read_rates


@dataclass(frozen=True)
class Topology:
    """The GPUs of one machine, their links and memories. ``print(topology)`` shows a table.

    Bandwidths are bytes per second, latencies seconds, memories bytes. Rank i of a node group is
    GPU i. XGNN 4.2 places partitions by it.

    Args:
        name: for people.
        bulk: large copies.
        latency: ``[n][n]``: time of the smallest read, its launch included; 0 where not known.
        host_latency: ``[n]``: the same from the host.
        memory: of each GPU.
        host_memory: of the machine.
        rows: by row bytes, rising: random rows, as a gather reads them (of the host by rising
            address). Where it is empty, rows are taken to be as fast as bulk copies.
        host_reads: ``[n]``: reads per second of the machine's memory in no order of address, which
            wait for address translation; empty: no slower than rows.
        caches: bytes of each GPU's second-level cache; empty: not known, taken to be none.
        staged: by row bytes, ascending: ``[n]`` bytes per second of rows that are far apart in the
            machine's memory, where CPU threads read all or a share of them for each GPU; empty:
            CPU threads read none.
    """

    name: str
    bulk: Rates
    latency: Matrix
    host_latency: Vector
    memory: tuple[int, ...]
    host_memory: int
    rows: tuple[tuple[int, Rates], ...] = ()
    host_reads: Vector = ()
    caches: tuple[int, ...] = ()
    staged: tuple[tuple[int, Vector], ...] = ()

    def __post_init__(self) -> None:
        count = self.num_gpus
        if len(self.latency) != count or any(len(row) != count for row in self.latency):
            raise ValueError(f"latency must be [{count}][{count}]")
        for name in ("host_latency", "memory"):
            if len(getattr(self, name)) != count:
                raise ValueError(
                    f"{name} must have {count} entries, got {len(getattr(self, name))}"
                )
        for name in ("host_reads", "caches"):
            if len(getattr(self, name)) not in (0, count):
                raise ValueError(
                    f"{name} must be empty or have {count} entries, got {len(getattr(self, name))}"
                )
        if not all(0 < reads < math.inf for reads in self.host_reads):
            raise ValueError(f"host_reads must be positive and finite, got {self.host_reads}")
        widths = [width for width, _ in self.rows]
        if widths != sorted(set(widths)) or any(w <= 0 for w in widths):
            raise ValueError(f"rows must be by rising positive row bytes, got {widths}")
        if any(len(rates) != count for _, rates in self.staged):
            raise ValueError(f"staged must have rates of {count} GPUs")
        if any(len(rates.bandwidth) != count for _, rates in self.rows):
            raise ValueError(f"rows must have rates of {count} GPUs")

    @classmethod
    def from_matrix(
        cls,
        bandwidth: Sequence[Sequence[float]],
        host: float | Sequence[float],
        *,
        memory: int | Sequence[int],
        host_memory: int = 0,
        ingress: Sequence[float] | None = None,
        name: str = "matrix",
    ) -> Topology:
        """A topology from bandwidths alone (latencies 0).

        Args:
            bandwidth: ``[n][n]`` as in :class:`Rates`.
            host, memory: of each GPU, or one number for all.
            ingress: default: every link is a GPU's own, so their sum.

        Raises:
            ValueError: not square, negative, or a GPU that does not reach its own memory.
        """
        matrix = tuple(tuple(float(v) for v in row) for row in bandwidth)
        count = len(matrix)
        hosts = (float(host),) * count if isinstance(host, (int, float)) else tuple(host)
        memories = (memory,) * count if isinstance(memory, int) else tuple(memory)
        if ingress is None:
            ingress = [sum(row) - sum(row[i : i + 1]) for i, row in enumerate(matrix)]
        return cls(
            name,
            Rates(matrix, tuple(ingress), hosts),
            ((0.0,) * count,) * count,
            (0.0,) * count,
            memories,
            host_memory,
        )

    @property
    def num_gpus(self) -> int:
        """How many GPUs it has."""
        return len(self.bulk.bandwidth)

    def neighbors(self, gpu: int) -> tuple[int, ...]:
        """The other GPUs whose memory a GPU reads, rising."""
        row = self.bulk.bandwidth[gpu]
        return tuple(j for j, rate in enumerate(row) if rate > 0 and j != gpu)

    @property
    def is_fully_linked(self) -> bool:
        """Whether every GPU reads every other one's memory."""
        return all(len(self.neighbors(g)) == self.num_gpus - 1 for g in range(self.num_gpus))

    def subset(self, gpus: Sequence[int]) -> Topology:
        """Some GPUs only, renumbered in the order given.

        Raises:
            ValueError: none, repeated, or unknown GPUs.
        """
        if not gpus or len(set(gpus)) != len(gpus):
            raise ValueError(f"gpus must name at least one GPU and none twice, got {list(gpus)}")
        self._check(gpus, "gpus")
        return self._select(f"{self.name}[{','.join(map(str, gpus))}]", gpus, ())

    def on_machines(self, ranks: Sequence[Sequence[int]]) -> Topology:
        """As many such machines, whose ranks have GPUs 0, 1, ... of each.

        Links between machines are taken to be those between the GPUs of these numbers in one.

        Args:
            ranks: the ranks of each machine; all of them are 0..n - 1.

        Raises:
            ValueError: a machine has more ranks than this one has GPUs.
        """
        gpus = {rank: gpu for of_machine in ranks for gpu, rank in enumerate(of_machine)}
        self._check(list(gpus.values()), "ranks")
        name = self.name if len(ranks) == 1 else f"{len(ranks)} x {self.name}"
        return self._select(name, [gpus[rank] for rank in range(len(gpus))], ())

    def masked(self, links: Iterable[tuple[int, int]]) -> Topology:
        """Without some links, each taken away in both directions.

        Raises:
            ValueError: a pair that is no link between two GPUs of the machine.
        """
        pairs = [(int(a), int(b)) for a, b in links]
        for a, b in pairs:
            self._check((a, b), "links")
            if a == b:
                raise ValueError(f"links: ({a}, {b}) is no link between two GPUs")
        if not pairs:
            return self
        return self._select(f"{self.name}, masked", range(self.num_gpus), pairs)

    def rates(self, row_bytes: int) -> Rates:
        """Random rows of a width: interpolated between the widths next to it; narrower rows than
        measured come at the narrowest one's rows per second, wider ones at the widest one's rate.
        """
        if row_bytes <= 0:
            raise ValueError(f"row_bytes must be positive, got {row_bytes}")
        if not self.rows:
            return self.bulk
        narrowest, widest = self.rows[0], self.rows[-1]
        if row_bytes <= narrowest[0]:
            share = row_bytes / narrowest[0]
            return mix(narrowest[1], narrowest[1], 0.0, share)
        if row_bytes >= widest[0]:
            return widest[1]
        above = next(k for k, (width, _) in enumerate(self.rows) if width >= row_bytes)
        (low, slow), (high, fast) = self.rows[above - 1 : above + 1]
        return mix(slow, fast, math.log(row_bytes / low) / math.log(high / low), 1.0)

    def staged_rates(self, row_bytes: int) -> Vector | None:
        """What CPU threads bring to each GPU of rows of a width: as of the widest measured one that
        is no wider, by rows per second of the narrowest for narrower ones; None: not known.
        """
        if not self.staged:
            return None
        narrowest, slow = self.staged[0]
        if row_bytes < narrowest:
            return tuple(rate * row_bytes / narrowest for rate in slow)
        return next(rates for width, rates in reversed(self.staged) if width <= row_bytes)

    def to_json(self) -> str:
        """As JSON; :meth:`from_json` reverses it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Topology:
        """What :meth:`to_json` wrote.

        Raises:
            ValueError: the text is no such JSON; it says which value, what was expected and what
                was found.
        """
        given = Fields(parse_json(text, "not a topology: the text"), "not a topology: ")
        rows = given.entries("rows", 2)
        staged = given.entries("staged", 2)
        return cls(
            given.text("name"),
            read_rates(given.object("bulk")),
            given.matrix("latency"),
            given.numbers("host_latency"),
            tuple(map(int, given.numbers("memory"))),
            int(given.number("host_memory")),
            tuple((of.integer("0"), read_rates(of.object("1"))) for of in rows),
            given.numbers("host_reads"),
            tuple(map(int, given.numbers("caches"))),
            tuple((of.integer("0"), of.numbers("1")) for of in staged),
        )

    def __str__(self) -> str:
        count = self.num_gpus
        head = ["GB/s", *(f"GPU {j}" for j in range(count)), "peers", "host", "memory"]
        lines = [head]
        for i in range(count):
            reads = [f"{v / 1e9:.1f}" if v else "-" for v in self.bulk.bandwidth[i]]
            ends = [
                f"{v / 1e9:.1f}" if v else "-" for v in (self.bulk.ingress[i], self.bulk.host[i])
            ]
            lines.append([f"GPU {i}", *reads, *ends, f"{self.memory[i] / 2**30:.1f} GiB"])
        widths = [max(len(line[c]) for line in lines) for c in range(len(head))]
        text = [f"topology {self.name!r}: {count} GPU{'s' if count != 1 else ''}"]
        text += ["  " + "  ".join(map(str.rjust, line, widths)) for line in lines]
        for width, rates in self.rows:
            own = min(rates.bandwidth[i][i] for i in range(count)) / 1e9
            host = min(rates.host) / 1e9
            text.append(
                f"  random rows of {width} bytes, slowest GPU: own {own:.1f}, "
                f"peers {min(rates.ingress) / 1e9:.1f}, host {host:.1f}"
            )
        if self.host_reads:
            text.append(
                f"  host in no order, slowest GPU: {min(self.host_reads) / 1e6:.1f} M reads/s"
            )
        if self.staged:
            sparse = (f"{min(r) / 1e9:.1f} ({w} bytes)" for w, r in self.staged)
            text.append(f"  host by CPU threads, slowest GPU: {', '.join(sparse)}")
        return "\n".join(text)

    def _check(self, gpus: Iterable[int], name: str) -> None:
        for gpu in gpus:
            if not 0 <= gpu < self.num_gpus:
                raise ValueError(f"{name}: GPU {gpu} is not one of 0..{self.num_gpus - 1}")

    def _select(
        self, name: str, gpus: Sequence[int], masked: Sequence[tuple[int, int]]
    ) -> Topology:
        return Topology(
            name,
            self.bulk.select(gpus, masked),
            tuple(tuple(self.latency[i][j] for j in gpus) for i in gpus),
            tuple(self.host_latency[i] for i in gpus),
            tuple(self.memory[i] for i in gpus),
            self.host_memory,
            tuple((width, rates.select(gpus, masked)) for width, rates in self.rows),
            tuple(self.host_reads[g] for g in gpus if self.host_reads),
            tuple(self.caches[g] for g in gpus if self.caches),
            tuple((width, tuple(rates[g] for g in gpus)) for width, rates in self.staged),
        )
