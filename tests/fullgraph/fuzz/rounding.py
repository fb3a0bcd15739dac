"""How far results may be from those of plain tensors: in float32, under autocast, by noise."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.fullgraph.fuzz.report import Configuration
from tests.fullgraph.fuzz.scene import Observation, Scene

FACTOR = 8.0
NUDGES = {"float64": (2e-14, -2e-14), "float32": (0.0, 2e-7, -2e-7)}
STEP = "optimizer.step()"
NUDGED_STEP = f"nudge_gradients(optimizer); {STEP}; nudge_parameters(optimizer)"
OF_FLOAT64, OF_FLOAT32, OF_AUTOCAST = 0.0, 2e-5, 3e-2
STEP_OR_GRADIENT = re.compile(r"optimizer\.step\(|autograd\.grad\(")
UNSEEN_WRITE = re.compile(r"(\w+)\.data(?=\.\w+_\(|\[| \+= )")


def allow_rounding(
    observations: list[Observation], lines: list[str], seed: int, where: Configuration
) -> list[Observation]:
    """Sets what values of plain tensors allow: some times their distance from another plain run.

    Those are runs in float64: of programs in float32 one that changes nothing, and of all two with
    features, gradients before a step and parameters after it that are changed as much as rounding
    does, up and down. A loss that is zero, say, or the bias of a difference of rows has gradients
    that consist of rounding, and of scores that are equal a small change selects one.
    What autocast rounds to the other side of ReLU's zero has another gradient: its gradients, and
    what follows a step, may be anything. So may be what follows where a program of other numbers
    raises, because it selects no rows, say, or where torch refuses the gradients of values that
    `.data` has changed, once it sees the write.
    """
    is_double = where.dtype == "float64"
    runs, end = [], len(lines)
    nudged = [NUDGED_STEP if line == STEP else line for line in lines]
    for amount in NUDGES[where.dtype]:
        exact = Scene(seed, replace(where, dtype="float64"), is_plain=True)
        exact.names["x"].mul_(1 + amount)
        exact.names["nudge_gradients"] = partial(_nudge_gradients, amount)
        exact.names["nudge_parameters"] = partial(_nudge_parameters, amount)
        end = min(end, _run(exact, nudged if amount else lines))
        runs.append(exact.observations[: len(observations)])
    if any(map(UNSEEN_WRITE.match, lines)):
        visible = [UNSEEN_WRITE.sub(r"with torch.no_grad(): \1", line) for line in lines]
        end = min(end, _run(Scene(seed, where, is_plain=True), visible))
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


def _nudge_gradients(amount: float, optimizer: Any) -> None:
    """Changes gradients by up to some amount of their largest: what sums to zero has its noise."""
    gradients = [p.grad for p in _parameters(optimizer) if p.grad is not None]
    gradients = [gradient for gradient in gradients if gradient.layout == torch.strided]
    scale = max((float(g.abs().max()) for g in gradients if g.numel()), default=0.0)
    for gradient in gradients:
        gradient.data.add_(scale * _wave(amount, gradient))


def _nudge_parameters(amount: float, optimizer: Any) -> None:
    """Changes the parameters of an optimizer by up to some amount, each by another one."""
    for parameter in _parameters(optimizer):
        parameter.data.add_(_wave(amount, parameter))


def _parameters(optimizer: Any) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _wave(amount: float, like: Tensor) -> Tensor:
    places = torch.arange(like.numel(), dtype=like.dtype)
    return (amount * torch.sin(1 + places)).view(like.shape)


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
