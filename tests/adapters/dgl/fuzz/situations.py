"""Runs a program on DGL's graph and on Peergraph's, and compares."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import peergraph_dgl
from tests.adapters.dgl.served import served

from .graphs import Draw, has_empty_rows, random_graph
from .programs import Program, owners, random_program


class Outcome(NamedTuple):
    """Results and gradients, or an error; one of the backward pass beside the results."""

    results: list[Tensor]
    gradients: dict[str, Tensor | None]
    error: Exception | None


def situation(seed: int, whole: bool) -> tuple[Any, Program]:
    """Returns a graph and a program; a `whole` graph is one that ``full_graph`` takes."""
    draw: Draw = np.random.default_rng(seed)
    g = random_graph(draw, whole)
    return g, random_program(draw, g)


def outcome(program: Program, g: Any, values: dict[str, Any]) -> Outcome:
    """Runs a program.

    Args:
        values: those of the program, on the device of the graph or partitioned.
    """
    leaves = {name: value.detach().clone().requires_grad_() for name, value in values.items()}
    results: list[Tensor] = []
    try:
        results = program.run(g, leaves)
        squares = [
            (out * torch.linspace(0.5, 1.5, max(1, out.shape[-1]), dtype=out.dtype).to(out.device)
             if out.dim() > 1 else out).nan_to_num(0, 1, -1).square().sum()
            for out in results if out.requires_grad
        ]  # fmt: skip
        if squares:
            torch.stack(squares).sum().backward()
    except Exception as error:
        return Outcome([_whole(out) for out in results], {}, error)
    gradients = {name: leaf.grad for name, leaf in leaves.items()}
    return Outcome(
        [_whole(out) for out in results],
        {name: None if grad is None else _whole(grad) for name, grad in gradients.items()},
        None,
    )


def _whole(rows: Any) -> Tensor:
    rows = rows.detach()
    return (rows.full_tensor() if hasattr(rows, "full_tensor") else rows).cpu()


def on_device(seed: int, device: torch.device) -> str:
    """Runs a program on a graph of a device that DGL's library does not know.

    Returns:
        A difference from DGL's results on the CPU, or an empty text.
    """
    g, program = situation(seed, whole=False)
    values = {name: value.to(device) for name, value in program.values.items()}
    actual = outcome(program, served(g, device), values)
    return difference(g, program, actual, "DeviceIndex")


def on_ranks(seeds: list[int], options: dict[str, Any]) -> list[Outcome]:
    """Runs programs on partitioned graphs; for :func:`peergraph.testing.run_ranks`."""
    torch.set_num_threads(1)
    outcomes = []
    for seed in seeds:
        g, program = situation(seed, whole=True)
        for name, data in owners(g, program):
            data[f"value {name}"] = program.values[name]
        part = peergraph_dgl.full_graph(g, **options)
        values = {name: data[f"value {name}"] for name, data in owners(part, program)}
        result = outcome(program, part, values)
        error = result.error
        if error is not None:  # others cannot be unpickled
            error = RuntimeError(f"{type(error).__name__}: {error}")
        outcomes.append(result._replace(error=error))
    return outcomes


def difference(g: Any, program: Program, actual: Outcome, refusal: str) -> str:
    """Returns how an outcome differs from DGL's.

    Args:
        refusal: a word of errors that say what is not supported.
    """
    expected = outcome(program, g, program.values)
    is_faulty = program.has_extrema and has_empty_rows(g)
    if actual.error is not None:
        text = f"{type(actual.error).__name__}: {actual.error}"
        is_named = refusal in text or (expected.error is not None and not expected.results)
        return "" if is_named else f"{program.name}: {text}"
    if expected.error is not None:
        is_known = expected.results != [] and (is_faulty or has_empty_rows(g))
        return "" if is_known else f"{program.name}: DGL raises {expected.error}"
    if len(actual.results) != len(expected.results):
        return f"{program.name}: {len(actual.results)} results"
    for i, (ours, theirs) in enumerate(zip(actual.results, expected.results, strict=True)):
        if not _is_close(ours, theirs):
            return f"{program.name}: result {i} is\n{ours}\nin place of\n{theirs}"
    for name, theirs in {} if is_faulty else expected.gradients.items():
        ours = actual.gradients[name]
        if (ours is None or theirs is None) and _is_zero(ours) and _is_zero(theirs):
            continue
        if ours is None or theirs is None or not _is_close(ours, theirs):
            return f"{program.name}: the gradient of {name} is\n{ours}\nin place of\n{theirs}"
    return ""


def _is_zero(gradient: Tensor | None) -> bool:
    return gradient is None or not gradient.any()


def _is_close(ours: Tensor, theirs: Tensor) -> bool:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    if not ours.is_floating_point():
        return torch.equal(ours, theirs)
    tolerance = 1e-9 if ours.dtype == torch.float64 else 1e-4
    return torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
