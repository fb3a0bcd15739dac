"""The specification of weighted, temporal and LABOR sampling, and of draws with replacement."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from peergraph.reference.philox import random_below, random_bits
from peergraph.reference.picks import picks

_SQRT_2 = 1.4142135623730951
_LN_2 = 0.6931471805599453

# Larger fanouts among the neighbours that times admit compare random keys.
_MOST_DRAWS = 2048


@dataclass
class Choice:
    """The options by which a relation chooses among the neighbours of a target.

    Args:
        replace: draw with replacement.
        weights: by edge id.
        skip_zero_weights: never choose neighbours of weight 0.
        times: by node id of the source, or by edge id with `edge_time`.
        edge_time: whether `times` are of edges.
        window: how long before the seed's time neighbours are admitted; None: always.
        last: take the most recent neighbours; with `replace`, draw among the `fanout` most recent
            ones.
        per_source: LABOR: a hop draws one number for each source node.
        layer_dependency: LABOR: the same numbers in all hops.
    """

    replace: bool = False
    weights: npt.NDArray[np.floating[Any] | np.bool_] | None = None
    skip_zero_weights: bool = False
    times: npt.NDArray[np.integer[Any]] | None = None
    edge_time: bool = False
    window: int | None = None
    last: bool = False
    per_source: bool = False
    layer_dependency: bool = False

    def draws_admitted(self, fanout: int) -> bool:
        """Whether admitted neighbours are drawn as uniform samples are drawn from whole lists."""
        other = self.last or self.per_source or self.weights is not None
        return self.times is not None and not other and fanout <= _MOST_DRAWS


@dataclass
class Candidates:
    """The neighbours of one target, in order of its list.

    Args:
        weights: of the neighbours' edges; None: no weights.
        skip_zero_weights: whether neighbours of weight 0 may not be chosen.
        times: of the neighbours or their edges; None: no times.
        latest: the seed's time.
        earliest: where its window begins.
        nodes: the neighbours.
        hop_stream: the random stream of the hop's first relation.
    """

    degree: int
    weights: list[float] | None = None
    times: list[int] | None = None
    latest: int = 0
    earliest: int = -(2**63)
    nodes: list[int] = field(default_factory=list)
    hop_stream: int = 0
    skip_zero_weights: bool = False

    def admitted(self) -> list[int]:
        """Which may be chosen: those in the seed's window, both ends included, and of them those
        with a weight, if others are skipped.
        """
        admitted = list(range(self.degree))
        if self.times is not None:
            admitted = [i for i in admitted if self.earliest <= self.times[i] <= self.latest]
        if self.skip_zero_weights and self.weights is not None:
            admitted = [i for i in admitted if self.weights[i] > 0]
        return admitted


def exponential(random: int) -> float:
    """Exp(1) out of 64 random bits, by operations that IEEE 754 defines to the last bit."""
    m, exponent = math.frexp((((random >> 12) << 1) | 1) * 2.0**-53)
    m, exponent = m * 2, exponent - 1
    if m > _SQRT_2:
        m, exponent = m * 0.5, exponent + 1
    s = (m - 1) / (m + 1)
    z = s * s
    series = 1 / 21
    for term in range(19, 0, -2):
        series = series * z + 1 / term
    return -(exponent * _LN_2 + 2 * s * series)


def float_bits(value: float) -> int:
    """The 64 bits of a double; for values of at least 0 they have the same order."""
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return int(bits)


def fixed_point(weight: float, heaviest: float, degree: int) -> int:
    """A weight as an integer; at most 2**62 for the weights of a list together."""

    def parts(value: float) -> tuple[int, int]:
        bits = float_bits(value)
        biased = bits >> 52
        return (bits & (2**52 - 1)) | (2**52 if biased else 0), max(biased, 1)

    significand, exponent = parts(weight)
    shift = 62 - degree.bit_length() - 53 - (parts(heaviest)[1] - exponent)
    return max(significand << shift if shift >= 0 else significand >> -shift, 1)


def choose(
    choice: Choice, candidates: Candidates, fanout: int, seed: int, stream: int, position: int
) -> list[int]:
    """Which neighbours a target gets, as positions in its list."""
    admitted = candidates.admitted()
    if fanout < 0 or (not choice.replace and len(admitted) <= fanout):
        return _in_order_of_time(candidates, admitted)
    if choice.replace and not choice.last:
        return _with_replacement(candidates, admitted, fanout, seed, stream, position)
    if choice.draws_admitted(fanout):
        places = picks(len(admitted), fanout, seed, stream, position)
        return _in_order_of_time(candidates, [admitted[place] for place in sorted(places)])

    def key(i: int) -> tuple[int, int]:
        if choice.last:
            assert candidates.times is not None
            # The two least int64 times count as one.
            return -max(candidates.times[i], -(2**63) + 1), -i
        if choice.per_source:
            hop_stream = 0 if choice.layer_dependency else candidates.hop_stream
            random = random_bits(seed, hop_stream, candidates.nodes[i], 0)
        else:
            random = random_bits(seed, stream, position, i)
        if candidates.weights is None:
            return random >> 1, i
        if candidates.weights[i] > 0:
            with np.errstate(over="ignore"):
                quotient = np.float64(exponential(random)) / np.float64(candidates.weights[i])
            return float_bits(float(quotient)), i
        return 2**63 | (random >> 2), i

    chosen = sorted(sorted(admitted, key=key)[:fanout])
    if choice.replace and chosen:
        count = len(chosen)
        return [chosen[random_below(count, seed, stream, position, k)] for k in range(fanout)]
    return _in_order_of_time(candidates, chosen)


def _in_order_of_time(candidates: Candidates, chosen: list[int]) -> list[int]:
    """Positions in ascending order, by their times where there are any."""
    times = candidates.times
    return chosen if times is None else sorted(chosen, key=lambda i: times[i])


def _with_replacement(
    candidates: Candidates, admitted: list[int], fanout: int, seed: int, stream: int, position: int
) -> list[int]:
    """Draws in proportion to the weights, or evenly where there are none above 0."""
    if not admitted:
        return []
    masses = [1] * len(admitted)
    weights = [candidates.weights[i] for i in admitted] if candidates.weights is not None else [0.0]
    heaviest = max(weights)
    if heaviest > 0:
        masses = [fixed_point(w, heaviest, candidates.degree) if w > 0 else 0 for w in weights]
    sums = np.cumsum(masses, dtype=object)
    draws = [random_below(int(sums[-1]), seed, stream, position, k) for k in range(fanout)]
    return [admitted[int(np.searchsorted(sums, draw, side="right"))] for draw in draws]
