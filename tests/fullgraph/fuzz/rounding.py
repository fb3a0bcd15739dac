"""How far results may be from those of plain tensors: in float32, under autocast, by noise."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from tests.fullgraph.fuzz.report import Configuration
from tests.fullgraph.fuzz.scene import Observation, Scene

FACTOR, NUDGE = 8.0, 2e-14
STEP = "optimizer.step()"
OF_FLOAT64, OF_FLOAT32, OF_AUTOCAST = 0.0, 2e-5, 3e-2
STEP_OR_GRADIENT = re.compile(r"optimizer\.step\(|autograd\.grad\(")
UNSEEN_WRITE = re.compile(r"(\w+)\.data(?=\.\w+_\(|\[| \+= )")


def allow_rounding(
    observations: list[Observation], lines: list[str], seed: int, where: Configuration
) -> list[Observation]:
    """Sets what values of plain tensors allow: some times their distance from another plain run.

    That is a run in float64; of programs in float64, two on features, and with parameters after a
    step, that are changed as much as rounding does, up and down: a loss that is zero, say, has
    gradients that consist of rounding, and of scores that are equal a small change selects one.
    What autocast rounds to the other side of ReLU's zero has another gradient: its gradients, and
    what follows a step, may be anything. So may be what follows where a program of other numbers
    raises, because it selects no rows, say, or where torch refuses the gradients of values that
    `.data` has changed, once it sees the write.
    """
    is_double = where.dtype == "float64"
    runs, end = [], len(lines)
    nudged = [f"{line}; nudge(optimizer)" if line == STEP else line for line in lines]
    for amount in (NUDGE, -NUDGE) if is_double else (0.0,):
        exact = Scene(seed, replace(where, dtype="float64"), is_plain=True)
        exact.names["x"].mul_(1 + amount)
        exact.names["nudge"] = partial(_nudge, amount)
        end = min(end, _run(exact, nudged if is_double else lines))
        runs.append(exact.observations[: len(observations)])
    if any(map(UNSEEN_WRITE.match, lines)):
        seen = [UNSEEN_WRITE.sub(r"with torch.no_grad(): \1", line) for line in lines]
        end = min(end, _run(Scene(seed, where, is_plain=True), seen))
    is_exact = is_double and not any("float()" in t or "float32" in t for t in lines)
    base = OF_FLOAT64 if is_exact else OF_FLOAT32
    if any("autocast" in line for line in lines):
        base = OF_AUTOCAST
        end = min([end, *(i for i, line in enumerate(lines) if STEP_OR_GRADIENT.search(line))])
    for value in observations:
        value.slack = 0.0
    for run in runs:
        for value, right in zip_longest(observations, run):
            is_gradient = "grad" in value.name
            if right is None or value.line >= end or (base == OF_AUTOCAST and is_gradient):
                value.slack = np.inf
                continue
            # A gradient that is zero has rounding of the size of those that it is computed with.
            beside = [v for v in run if v.line == value.line]
            scale = max(map(_scale, beside if base == OF_AUTOCAST else [right]))
            value.slack = max(value.slack, _slack(value.value, right.value, base * scale))
    return observations


def _run(scene: Scene, lines: list[str]) -> int:
    """Returns how many statements run before one raises."""
    try:
        scene.run(lines)
    except Exception:
        return scene.line
    return len(lines)


def _nudge(amount: float, optimizer: Any) -> None:
    """Changes the parameters of an optimizer by up to some amount, each by another one."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            places = torch.arange(parameter.numel(), dtype=parameter.dtype)
            parameter.data.add_((amount * torch.sin(1 + places)).view(parameter.shape))


def _scale(of: Observation) -> float:
    finite = of.value[np.isfinite(of.value)] if of.value.dtype.kind in "fc" else np.zeros(0)
    return max(1.0, float(np.abs(finite).max(initial=0.0)))


def _slack(value: np.ndarray, exact: np.ndarray, least: float) -> float:
    if value.shape != exact.shape:
        return np.inf
    if value.dtype.kind != "f":
        return np.inf if least >= OF_AUTOCAST or not np.array_equal(value, exact) else 0.0
    if not (np.isfinite(value) & np.isfinite(exact)).all():
        return np.inf
    return float(FACTOR * np.abs(value - exact).max(initial=0.0) + least)
