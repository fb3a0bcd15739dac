"""The links of a machine: bandwidths and latencies between GPUs and to the host."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from peergraph.json_fields import Fields, parse_json
from peergraph.memory.device.default_machine import CPUS, GPUS, WorkRates
from peergraph.memory.topology.rates import Matrix, Rates, Vector, mix, read_rates
from peergraph.printing import table_lines


@dataclass(frozen=True)
class Topology:
    """The GPUs of one machine, their links and memories. ``print(topology)`` shows a table.

    Bandwidths are bytes per second, latencies seconds, memories bytes. Rank i of a node group is
    GPU i. XGNN 4.2 places partitions by the topology.

    Args:
        name: a name for people.
        bulk: the rates of large copies.
        latency: ``[n][n]``: time of the smallest read, its launch included; 0 if not known.
        memory: ``[n]``: the memory of each GPU.
        host_memory: the memory of the machine.
        rows: by row bytes, ascending: the rates of random rows, as a gather reads them (from the
            host in ascending order of address). Empty: rows are as fast as bulk copies.
        host_reads: ``[n]``: reads per second of the machine's memory in random order of address,
            which wait for address translation. Empty: they are no slower than rows.
        caches: ``[n]``: bytes of each GPU's second-level cache. Empty: GPUs have no cache.
        staged: by row bytes, ascending: ``[n]`` bytes per second of rows that are far apart in the
            machine's memory, with CPU threads that read all or a share of them for each GPU. Empty:
            CPU threads read no rows.
        work: how fast the machine does what is not a read over one link.
    """

    name: str
    bulk: Rates
    latency: Matrix
    memory: tuple[int, ...]
    host_memory: int
    rows: tuple[tuple[int, Rates], ...] = ()
    host_reads: Vector = ()
    caches: tuple[int, ...] = ()
    staged: tuple[tuple[int, Vector], ...] = ()
    work: WorkRates = field(default_factory=WorkRates)

    def __post_init__(self) -> None:
        count = self.num_gpus
        if len(self.latency) != count or any(len(row) != count for row in self.latency):
            raise ValueError(f"latency must be [{count}][{count}]")
        if len(self.memory) != count:
            raise ValueError(f"memory must have {count} entries, got {len(self.memory)}")
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
        """Makes a topology from bandwidths alone (latencies are 0).

        Args:
            bandwidth: ``[n][n]`` as in :class:`Rates`.
            host: bandwidth from the host to each GPU, or one number for all GPUs.
            memory: bytes of each GPU, or one number for all GPUs.
            host_memory: bytes of the machine.
            ingress: as in :class:`Rates`. Default: separate links, so the sum of the bandwidths.
            name: a name for people.

        Raises:
            ValueError: the matrix is not square, a number is negative, or a GPU does not reach its
                own memory.
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
            memories,
            host_memory,
        )

    @classmethod
    def default(cls, count: int, *, gpus: bool = True) -> Topology:
        """Returns the figures that stand for a machine that was not measured.

        They are those of `count` H200s behind a switch, of which each reads all its peers together
        as fast as one peer; without `gpus`, those of ranks that share the machine's memory.
        """
        rates = GPUS if gpus else CPUS
        return cls.from_matrix(
            [[rates.own if i == j else rates.peers for j in range(count)] for i in range(count)],
            rates.host,
            memory=rates.memory,
            host_memory=rates.host_memory,
            ingress=[rates.peers if count > 1 else 0.0] * count if gpus else None,
            name="default figures",
        )

    @property
    def num_gpus(self) -> int:
        """The number of GPUs."""
        return len(self.bulk.bandwidth)

    def neighbors(self, gpu: int) -> tuple[int, ...]:
        """Returns the other GPUs whose memory a GPU can read, ascending."""
        row = self.bulk.bandwidth[gpu]
        return tuple(j for j, rate in enumerate(row) if rate > 0 and j != gpu)

    @property
    def is_fully_linked(self) -> bool:
        """Whether every GPU can read every other GPU's memory."""
        return all(len(self.neighbors(g)) == self.num_gpus - 1 for g in range(self.num_gpus))

    def subset(self, gpus: Sequence[int]) -> Topology:
        """Returns the topology of some GPUs, renumbered in the given order.

        Raises:
            ValueError: no GPU, a GPU that occurs twice, or an unknown GPU.
        """
        if not gpus or len(set(gpus)) != len(gpus):
            raise ValueError(f"gpus must name at least one GPU and none twice, got {list(gpus)}")
        self._check(gpus, "gpus")
        return self._select(f"{self.name}[{','.join(map(str, gpus))}]", gpus, ())

    def on_machines(self, ranks: Sequence[Sequence[int]]) -> Topology:
        """Returns the topology of several machines of this kind. The ranks of each machine use its
        GPUs 0, 1, ...

        A link between GPUs i and j of two machines is taken to be as fast as the link between GPUs
        i and j of one machine.

        Args:
            ranks: the ranks of each machine; together they are 0..n - 1.

        Raises:
            ValueError: a machine has more ranks than this topology has GPUs.
        """
        gpus = {rank: gpu for of_machine in ranks for gpu, rank in enumerate(of_machine)}
        self._check(list(gpus.values()), "ranks")
        name = self.name if len(ranks) == 1 else f"{len(ranks)} x {self.name}"
        return self._select(name, [gpus[rank] for rank in range(len(gpus))], ())

    def masked(self, links: Iterable[tuple[int, int]]) -> Topology:
        """Returns the topology without some links; each is removed in both directions.

        Raises:
            ValueError: a pair is not a link between two GPUs of the machine.
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
        """Returns the rates of random rows of a width, interpolated between the measured widths.

        Rows narrower than all measured ones have the narrowest width's rows per second; wider rows
        have the widest width's bytes per second.
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
        """Returns the bytes per second of rows of a width that CPU threads bring to each GPU; None
        if they are not known.

        It is the rate of the widest measured width that is not wider. Rows narrower than all
        measured ones have the narrowest width's rows per second.
        """
        if not self.staged:
            return None
        narrowest, slow = self.staged[0]
        if row_bytes < narrowest:
            return tuple(rate * row_bytes / narrowest for rate in slow)
        return next(rates for width, rates in reversed(self.staged) if width <= row_bytes)

    def to_json(self) -> str:
        """Returns the topology as JSON; :meth:`from_json` reverses it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Topology:
        """Reads a topology that :meth:`to_json` has written.

        Raises:
            ValueError: the text is not such JSON. The error names the value, what was expected and
                what was found.
        """
        fields = Fields(parse_json(text, "not a topology: the text"), "not a topology: ")
        rows = fields.entries("rows", 2)
        staged = fields.entries("staged", 2)
        return cls(
            fields.text("name"),
            read_rates(fields.object("bulk")),
            fields.matrix("latency"),
            tuple(map(int, fields.numbers("memory"))),
            int(fields.number("host_memory")),
            tuple((entry.integer("0"), read_rates(entry.object("1"))) for entry in rows),
            fields.numbers("host_reads"),
            tuple(map(int, fields.numbers("caches"))),
            tuple((entry.integer("0"), entry.numbers("1")) for entry in staged),
            WorkRates.from_fields(fields.object("work")) if fields.has("work") else WorkRates(),
        )

    def __str__(self) -> str:
        count = self.num_gpus
        lines = [["GB/s", *(f"GPU {j}" for j in range(count)), "peers", "host", "memory"]]
        for i in range(count):
            reads = [f"{v / 1e9:.1f}" if v else "-" for v in self.bulk.bandwidth[i]]
            ends = [
                f"{v / 1e9:.1f}" if v else "-" for v in (self.bulk.ingress[i], self.bulk.host[i])
            ]
            lines.append([f"GPU {i}", *reads, *ends, f"{self.memory[i] / 2**30:.1f} GiB"])
        text = [f"topology {self.name!r}: {count} GPU{'s' if count != 1 else ''}"]
        text += table_lines(lines, 0)
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
            tuple(self.memory[i] for i in gpus),
            self.host_memory,
            tuple((width, rates.select(gpus, masked)) for width, rates in self.rows),
            tuple(self.host_reads[g] for g in gpus if self.host_reads),
            tuple(self.caches[g] for g in gpus if self.caches),
            tuple((width, tuple(rates[g] for g in gpus)) for width, rates in self.staged),
            self.work,
        )
