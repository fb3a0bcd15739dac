"""Runs a program on a full graph and says how it ended, compared with plain tensors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tests.fullgraph.fuzz.generator import make_program
from tests.fullgraph.fuzz.loaders import make_loader_program, run_loader_program
from tests.fullgraph.fuzz.report import (
    DIFFERS,
    EQUAL,
    NAMED,
    UNNAMED,
    Configuration,
    Outcome,
)
from tests.fullgraph.fuzz.rounding import allow_rounding
from tests.fullgraph.fuzz.scene import Observation, Scene

TOLERANCE = {"float64": 1e-7, "float32": 2e-4}
# Of messages that say what to do instead, or what the arguments must be.
WAYS_OUT = (
    *("to_local", "full_tensor", "fullgraph.like", "detach", "select rows", "select both", "clone"),
    *(
        "no_grad",
        "offload=False",
        "must ",
        "expected ",
        "instead",
        "out of bounds",
        "take it again",
        "to_dense()",
    ),
)
NAMED_ERRORS = (NotImplementedError, ValueError, IndexError)
OWN_WORDS = ("partitioned", "offloaded", "full graph", "a row was taken")
# Torch's own: where plain tensors give gradients of values that were changed through `.data`, and
# where their functions save nothing that a second backward pass needs.
OF_TORCH = (
    *("has been modified by an inplace operation", "Specify retain_graph=True"),
    "refers to a single memory location",
)


def run_seeded(seed: int, where: Configuration) -> Outcome:
    """Makes the program of a seed and runs it. Collective; does not raise."""
    if where.plan:
        return run_loader_program(make_loader_program(seed), seed, where)
    lines, expected = make_program(seed, where)
    return run_program(lines, seed, expected, where)


def observe(lines: list[str], seed: int, where: Configuration) -> list[Observation] | None:
    """What plain tensors give; None if a statement raises."""
    scene = Scene(seed, where, is_plain=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            scene.run(lines)
            return allow_rounding(scene.observations, lines, seed, where)
        except Exception:
            return None


def run_program(
    lines: list[str], seed: int, expected: list[Observation], where: Configuration
) -> Outcome:
    """Runs a program on a full graph. Collective; does not raise.

    Args:
        lines, seed: the program.
        expected: what plain tensors gave.
        where: the number of chunks, and the device.
    """
    error: Exception | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scene = Scene(seed, where)
        try:
            scene.run(lines)
        except Exception as exception:
            error = exception
    line, difference = first_difference(scene.observations, expected)
    if difference:
        return Outcome(DIFFERS, line, difference, len(lines))
    if error is None:
        return Outcome(EQUAL, 0, "", len(lines))
    message = f"{type(error).__name__}: {error}".split("\n")[0][:400]
    return Outcome(NAMED if is_named(error) else UNNAMED, scene.line, message, len(lines))


def first_difference(values: list[Observation], expected: list[Observation]) -> tuple[int, str]:
    """The line of the first difference, and what differs; nothing if values are equal."""
    for value, right in zip(values, expected, strict=False):
        if difference := _difference(value, right):
            return right.line, f"{right.name}: {difference}"
    return 0, ""


def is_named(error: Exception) -> bool:
    """Whether an error says what to do instead."""
    text = str(error)
    if any(part in text for part in OF_TORCH):
        return True
    is_own = isinstance(error, NAMED_ERRORS) or any(word in text for word in OWN_WORDS)
    return is_own and any(way in text for way in WAYS_OUT)


def _difference(value: Observation, right: Observation) -> str:
    """What differs; nothing if values are equal to rounding."""
    for name in ("name", "line", "shape", "dtype", "requires_grad"):
        if name == "shape" and right.slack == np.inf:  # rounding may select other rows
            continue
        both = getattr(value, name), getattr(right, name)
        if both[0] != both[1] and None not in both:
            return f"{name} is {getattr(value, name)}, right is {getattr(right, name)}"
    if value.value.shape != right.value.shape and right.slack < np.inf:
        return f"rows have shape {value.value.shape}, right is {right.value.shape}"
    if _are_close(value.value, right.value, right.slack):
        return ""
    return f"values are {_text(value.value)}, right is {_text(right.value)}"


def _are_close(value: np.ndarray[Any, Any], right: np.ndarray[Any, Any], slack: float) -> bool:
    if slack == np.inf:
        return True
    if right.dtype.kind not in "fc":
        return bool(np.array_equal(value, right))
    tolerance = TOLERANCE.get(str(right.dtype), 1e-2)
    scale = max(1.0, float(np.abs(right[np.isfinite(right)]).max(initial=0.0)))
    slack += tolerance * 1e-2 * scale
    return bool(np.allclose(value, right, rtol=tolerance, atol=slack, equal_nan=True))


def _text(value: np.ndarray[Any, Any]) -> str:
    return np.array2string(value, precision=6, threshold=12, separator=", ").replace("\n", "")
