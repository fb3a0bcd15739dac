"""Bandwidths of a machine's links, for reads of one kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from peergraph.json_fields import Fields

Vector = tuple[float, ...]


Matrix = tuple[Vector, ...]


@dataclass(frozen=True)
class Rates:
    """Bytes per second of one way to read: in bulk, or random rows of one width.

    Args:
        bandwidth: ``[n][n]``: GPU i reads from GPU j's memory, 0 where it cannot; the diagonal is
            its own memory.
        ingress: ``[n]``: GPU i reads from all GPUs that it reaches at once, all GPUs doing so.
            With a switch it is no more than one pair has; with links of their own, their sum.
        host: ``[n]``: GPU i reads the machine's memory.
    """

    bandwidth: Matrix
    ingress: Vector
    host: Vector

    def __post_init__(self) -> None:
        count = len(self.bandwidth)
        if any(len(row) != count for row in self.bandwidth):
            raise ValueError(
                f"bandwidth must be square, got rows of {[len(r) for r in self.bandwidth]}"
            )
        for name in ("ingress", "host"):
            if len(getattr(self, name)) != count:
                raise ValueError(
                    f"{name} must have {count} entries, got {len(getattr(self, name))}"
                )
        values = [*(v for row in self.bandwidth for v in row), *self.ingress, *self.host]
        if any(not 0 <= v < math.inf for v in values):
            raise ValueError("rates must be finite and not negative")
        if 0 in self.host:
            raise ValueError("host: every GPU must reach the machine's memory")
        for gpu, row in enumerate(self.bandwidth):
            if row[gpu] == 0:
                raise ValueError(f"bandwidth[{gpu}][{gpu}]: a GPU must reach its own memory")

    def select(self, gpus: Sequence[int], masked: Iterable[tuple[int, int]] = ()) -> Rates:
        """The rates among some GPUs, renumbered in this order, without the masked pairs.

        A GPU may be named several times, as of several such machines.
        """
        gone = {pair for a, b in masked for pair in ((a, b), (b, a))}
        bandwidth = tuple(
            tuple(0.0 if (i, j) in gone else self.bandwidth[i][j] for j in gpus) for i in gpus
        )
        links = [sum(row) - row[k] for k, row in enumerate(bandwidth)]
        ingress = tuple(
            min(self.ingress[g] or self.bandwidth[g][g], links[k]) for k, g in enumerate(gpus)
        )
        return Rates(bandwidth, ingress, tuple(self.host[g] for g in gpus))


def mix(low: Rates, high: Rates, share: float, scale: float) -> Rates:
    """(1 - share) of `low` and share of `high`, times `scale`."""

    def between(a: Vector, b: Vector) -> Vector:
        return tuple(scale * ((1 - share) * x + share * y) for x, y in zip(a, b, strict=True))

    return Rates(
        tuple(map(between, low.bandwidth, high.bandwidth)),
        between(low.ingress, high.ingress),
        between(low.host, high.host),
    )


def read_rates(given: Fields) -> Rates:
    """What :func:`dataclasses.asdict` made of rates. Raises ValueError where it is none."""
    return Rates(given.matrix("bandwidth"), given.numbers("ingress"), given.numbers("host"))
