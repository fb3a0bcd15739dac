"""How far results may be from those of plain tensors: in float32, under autocast, by noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tests.fullgraph.fuzz.report import Configuration
from tests.fullgraph.fuzz.scene import Observation, Scene

FACTOR, NUDGE = 8.0, 2e-14
STEP = "optimizer.step()"
OF_FLOAT64, OF_FLOAT32, OF_AUTOCAST = 0.0, 2e-5, 3e-2


def allow_rounding(
    observations: list[Observation], lines: list[str], seed: int, where: Configuration
) -> list[Observation]:
    """Sets what values of plain tensors allow: some times their distance from another plain run.

    That is a run in float64; of programs in float64, one on features, and with parameters after a
    step, that are changed as much as rounding does: a loss that is zero, say, has gradients that
    consist of rounding, and of scores that are equal a small change selects one. Optimizers make
    steps of one size from gradients of any size: after a step, autocast's rounding may be anything.

    Raises the error of a program that does not run so.
    """
    scene = Scene(seed, replace(where, dtype="float64"), is_plain=True)
    if where.dtype == "float64":
        scene.names["x"].mul_(1 + NUDGE)
        scene.names["nudge"] = _nudge
        scene.run([f"{line}; nudge(optimizer)" if line == STEP else line for line in lines])
    else:
        scene.run(lines)
    is_exact = where.dtype == "float64" and not any("float()" in t or "float32" in t for t in lines)
    base = OF_FLOAT64 if is_exact else OF_FLOAT32
    step = len(lines)
    if any("autocast" in line for line in lines):
        base = OF_AUTOCAST
        step = lines.index(STEP) if STEP in lines else step
    for value, exact in zip(observations, scene.observations, strict=True):
        value.slack = np.inf if value.line > step else _slack(value.value, exact.value, base)
    return observations


def _nudge(optimizer: Any) -> None:
    """Changes the parameters of an optimizer by other amounts each."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            places = torch.arange(parameter.numel(), dtype=parameter.dtype)
            parameter.data.add_((NUDGE * torch.sin(1 + places)).view(parameter.shape))


def _slack(value: np.ndarray, exact: np.ndarray, base: float) -> float:
    if value.shape != exact.shape:
        return np.inf
    if value.dtype.kind != "f":
        return np.inf if base == OF_AUTOCAST or not np.array_equal(value, exact) else 0.0
    finite = np.isfinite(value) & np.isfinite(exact)
    if not finite.all():
        return np.inf
    error = np.abs(value - exact).max(initial=0.0)
    scale = max(1.0, np.abs(exact).max(initial=0.0))
    return float(FACTOR * error + base * scale)
