"""How far results in float32 and under autocast may be from those of plain tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.fullgraph.fuzz.report import Configuration
from tests.fullgraph.fuzz.scene import Observation, Scene

FACTOR, OF_FLOAT32, OF_AUTOCAST = 8.0, 2e-5, 3e-2


def allow_rounding(
    observations: list[Observation], lines: list[str], seed: int, where: Configuration
) -> list[Observation]:
    """Sets what values of plain tensors allow: some times their distance from float64.

    Raises the error of a program that does not run in float64.
    """
    if where.dtype == "float64":
        return observations
    scene = Scene(seed, replace(where, dtype="float64"), is_plain=True)
    scene.run(lines)
    has_autocast = any("autocast" in line for line in lines)
    for value, exact in zip(observations, scene.observations, strict=True):
        value.slack = _slack(value.value, exact.value, has_autocast)
    return observations


def _slack(value: np.ndarray, exact: np.ndarray, has_autocast: bool) -> float:
    if value.shape != exact.shape:
        return np.inf
    if value.dtype.kind != "f":
        return np.inf if has_autocast or not np.array_equal(value, exact) else 0.0
    finite = np.isfinite(value) & np.isfinite(exact)
    if not finite.all():
        return np.inf
    error = np.abs(value - exact).max(initial=0.0)
    scale = max(1.0, np.abs(exact).max(initial=0.0))
    return float(FACTOR * error + (OF_AUTOCAST if has_autocast else OF_FLOAT32) * scale)
