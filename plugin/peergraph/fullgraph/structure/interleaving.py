"""How a kernel interleaves local and remote edges, and how that is tuned at run time (MGG 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import peergraph._C as _C

_DEFAULTS = _C.Interleaving()
_LANES = 32
_VECTOR_BYTES = 16
_VECTORS = (1, 2, 4, 8)

DISTANCES = (1, 2, 4, 8, 16)
"""Distances that are tried."""
WARPS = (1, 2, 4, 8, 16)
"""Warps of a block that are tried."""
MOST_PROBES = 12
"""Settings that :func:`tune` measures at most."""


@dataclass(frozen=True)
class Interleaving:
    """The three parameters of MGG 4. Sums are the same to the bit for all of them.

    Args:
        partition: remote edges whose rows a warp reads before it adds any of them (ps).
        distance: rows next to each other whose local and remote edges one warp sums (dist), 1..32;
            0: one kernel sums all local edges, and then one all remote edges (:data:`APART`).
        warps_per_block: 1..16 (wpb).
    """

    partition: int = _DEFAULTS.partition
    distance: int = _DEFAULTS.distance
    warps_per_block: int = _DEFAULTS.warps_per_block

    def native(self) -> _C.Interleaving:
        """Returns the parameters as the compiled module takes them."""
        return _C.Interleaving(
            partition=self.partition,
            distance=self.distance,
            warps_per_block=self.warps_per_block,
        )

    def __str__(self) -> str:
        if self.distance == 0:
            return "local edges first"
        warps = f"{self.warps_per_block} warp{'s' if self.warps_per_block > 1 else ''}"
        return f"partition {self.partition}, distance {self.distance}, {warps} a block"


APART = Interleaving(distance=0)
"""Local edges first, then remote ones; the other parameters mean nothing."""


def partitions(row_bytes: int) -> tuple[int, ...]:
    """Returns the values of `partition` that are tried for rows of `row_bytes` bytes, ascending.

    As many lanes of a warp work on an edge as its row has vectors; each lane holds 1 to 8 vectors.
    """
    lanes = 1
    while lanes < _LANES and lanes * _VECTOR_BYTES < row_bytes:
        lanes *= 2
    edges = _LANES // lanes
    return tuple(edges * count for count in _VECTORS if count == 1 or edges * count <= _LANES)


def grid(row_bytes: int) -> list[Interleaving]:
    """Returns all settings that :func:`tune` chooses from."""
    axes = partitions(row_bytes), DISTANCES, WARPS
    return [APART, *(Interleaving(*values) for values in product(*axes))]


def tune(
    measure: Callable[[Interleaving], float], row_bytes: int, most_probes: int = MOST_PROBES
) -> tuple[Interleaving, dict[Interleaving, float]]:
    """Finds a quick setting: one parameter after the other, while that helps (MGG 4).

    Measures :data:`APART`, and begins in the middle of the rest. Each parameter is raised as long
    as the time falls, or else lowered; the order is partition, distance, warps, as in the paper,
    and begins anew until no step helps.

    Args:
        measure: returns the time of a setting; called once for each setting.
        row_bytes: of the rows that are summed.
        most_probes: settings to measure at most, at least 1.

    Returns:
        The quickest setting that was measured, and the times of all of them.
    """
    axes: Sequence[Sequence[int]] = (partitions(row_bytes), DISTANCES, WARPS)
    times = {APART: measure(APART)}

    def time_of(place: list[int]) -> float | None:
        """Returns the time at indices of the axes, or None where there is none to be had."""
        if not all(0 <= i < len(axis) for i, axis in zip(place, axes, strict=True)):
            return None
        setting = Interleaving(*(axis[i] for i, axis in zip(place, axes, strict=True)))
        if setting not in times:
            if len(times) == most_probes:
                return None
            times[setting] = measure(setting)
        return times[setting]

    best = [len(axis) // 2 for axis in axes]
    least = time_of(best)
    improved = least is not None
    while improved:
        improved = False
        for axis in range(len(axes)):
            for step in (1, -1):
                before = least
                while True:
                    place = [i + step * (k == axis) for k, i in enumerate(best)]
                    seconds = time_of(place)
                    if seconds is None or least is None or seconds >= least:
                        break
                    best, least, improved = place, seconds, True
                if least != before:
                    break
    return min(times, key=times.__getitem__), times
