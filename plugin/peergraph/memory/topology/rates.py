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
        ingress: ``[n]``: GPU i reads from all its peers at once, while all GPUs do so. With a
            switch it is at most the bandwidth of one pair; with separate links it is their sum.
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
        """Returns the rates among some GPUs, renumbered in this order, without the masked pairs.

        A GPU may occur several times, for several machines of this kind.
        """
        removed = {pair for a, b in masked for pair in ((a, b), (b, a))}
        bandwidth = tuple(
            tuple(0.0 if (i, j) in removed else self.bandwidth[i][j] for j in gpus) for i in gpus
        )
        links = [sum(row) - row[k] for k, row in enumerate(bandwidth)]
        ingress = tuple(
            min(self.ingress[g] or self.bandwidth[g][g], links[k]) for k, g in enumerate(gpus)
        )
        return Rates(bandwidth, ingress, tuple(self.host[g] for g in gpus))


def mix(low: Rates, high: Rates, share: float, scale: float) -> Rates:
    """Returns ``scale * ((1 - share) * low + share * high)`` for all rates."""

    def between(a: Vector, b: Vector) -> Vector:
        return tuple(scale * ((1 - share) * x + share * y) for x, y in zip(a, b, strict=True))

    return Rates(
        tuple(map(between, low.bandwidth, high.bandwidth)),
        between(low.ingress, high.ingress),
        between(low.host, high.host),
    )


def read_rates(fields: Fields) -> Rates:
    """Reads the result of :func:`dataclasses.asdict`. Raises ValueError for other data."""
    return Rates(fields.matrix("bandwidth"), fields.numbers("ingress"), fields.numbers("host"))
