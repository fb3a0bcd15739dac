"""Situations: a loader's batches, a layer, and what a script does to both between its calls."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import peergraph_pyg

from .captured import run_captured
from .graphs import Draw, graph, loader_over, one_of, typed_graph
from .inputs import WAYS, Inputs, change, changes_on, send
from .layers import call, layer_of

KINDS = ("layers", "typed", "captured")


def run(kind: str, seed: int, device: str = "cpu") -> str:
    """Runs a situation.

    Args:
        kind: one of :data:`KINDS`.
        seed: determines it.
        device: of the store.

    Returns:
        What differs from plain PyG, in words, or "".
    """
    draw = np.random.default_rng([KINDS.index(kind), seed])
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "captured":
            return run_captured(draw, seed, device)
        return _run_layers(draw, device, typed=kind == "typed")


def _run_layers(draw: Draw, device: str, *, typed: bool) -> str:
    data = (typed_graph if typed else graph)(draw)
    how, plain = layer_of(draw, data)
    plain = plain.double()
    accelerated: nn.Module = peergraph_pyg.accelerate(copy.deepcopy(plain).to(device))
    shared = peergraph_pyg.share(data, device=device)
    batches = []  # batches that a script still has
    for number, batch in enumerate(loader_over(draw, shared, trims=how == "hops")):
        if number == 3:
            break
        batches.append(batch)
        way = one_of(draw, *WAYS)
        expected = Inputs.of(plain, batch, copies=True)
        result = Inputs.of(accelerated, send(batch, way), copies=False)
        result.changes.append(way or "batch")
        for change_name in [
            one_of(draw, *changes_on(device)) for _ in range(int(draw.integers(5)))
        ] + [""]:
            seed = int(draw.integers(1 << 30))
            if change_name:
                errors = [
                    _error_of(change, each, change_name, np.random.default_rng(seed))
                    for each in (expected, result)
                ]
                if any(errors):
                    if not all(errors):
                        return _described(result, how, f"errors {errors}")
                    break  # torch refuses the change
                if draw.random() < 0.5:
                    continue
            difference = _difference(expected, result, how)
            if difference is None:
                break
            if difference:
                return _described(result, how, difference)
        plain, accelerated = expected.layer, result.layer
        batches = batches[-int(draw.integers(1, 3)) :]
    peergraph_pyg.store_of(shared).close()
    return ""


def _error_of(function: Any, *args: Any) -> str:
    try:
        function(*args)
    except Exception as error:
        return repr(error)[:200]
    return ""


def _described(inputs: Inputs, how: str, difference: str) -> str:
    changes = ", ".join(inputs.changes)
    return (
        f"{inputs.layer} called with {how or 'features and edges'}, after {changes}: {difference}"
    )


def _difference(expected: Inputs, result: Inputs, how: str) -> str | None:
    """Returns how the results of both differ, or ""; None where PyG raises an error."""
    values: list[Any] = []
    for inputs in (expected, result):
        try:
            values.append(call(inputs, how))
        except Exception as error:
            values.append(repr(error)[:300])
            if inputs is expected and not next(iter(result.x.values())).is_cpu:
                return None  # what PyG refuses could be an invalid address on a GPU
    failed = [isinstance(each, str) for each in values]
    if all(failed) or (failed[0] and "inference tensor" in values[0]):
        return None  # PyG's EdgeIndex writes to itself
    if any(failed):
        return f"PyG {'raises' if failed[0] else 'returns'}, Peergraph: {values[1]}"
    theirs, ours = values
    if list(theirs) != list(ours):
        return f"PyG has {list(theirs)}, Peergraph {list(ours)}"
    ties = _has_extrema(expected.layer)
    for name, value in theirs.items():
        # Of equal neighbours, the first gets the gradient of an extremum.
        if ties and name.startswith(("gradient of x ", "gradient of edge_")):
            continue
        if isinstance(value, Tensor) and not _are_close(ours[name], value):
            return f"{name} is {ours[name]}, right is {value}"
    return ""


def _are_close(value: Tensor, right: Tensor) -> bool:
    same = value.dtype == right.dtype and value.shape == right.shape
    return same and torch.allclose(value.cpu(), right, rtol=1e-8, atol=1e-9, equal_nan=True)


def _has_extrema(layer: nn.Module) -> bool:
    names = ("Max", "Min", "Median")
    return any(type(module).__name__.startswith(names) for module in layer.modules())
