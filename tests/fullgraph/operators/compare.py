"""Runs calls of operators on rows of full graphs, and says where they differ from plain tensors."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

import peergraph_pyg
from tests.fullgraph.fuzz.outcomes import is_named
from tests.fullgraph.operators.calls import Call, calls, operators


def compare(
    part: int, parts: int, samples: int, chunks: int | None, dtypes: list[torch.dtype], device: str
) -> tuple[Counter[str], list[str]]:
    """Compares every `parts`-th operator; returns how the calls ended, and what is wrong.

    Collective.

    Args:
        part, parts: which operators.
        samples: of each operator.
        chunks: of offloaded rows; None: rows on the device.
        dtypes: of the inputs.
        device: "cpu" or "cuda".
    """
    warnings.simplefilter("ignore")
    ends: Counter[str] = Counter()
    faults: list[str] = []
    for op in operators(part, parts):
        for dtype in dtypes:
            for call in calls(op, dtype, samples, device):
                end, text = _end_of(call, chunks, device)
                ends[end] += 1
                if text:
                    faults.append(f"{call.name}, {dtype}, chunks {chunks}: {end}: {text}")
    return ends, faults


def _end_of(call: Call, chunks: int | None, device: str) -> tuple[str, str]:
    """Returns how a call ends, and what is wrong with it."""
    try:
        right = call.run([tensor.clone() for tensor in call.tensors])
    except Exception as raised:
        refused: Exception | None = raised
    else:
        refused = None
    rows = _rows(call.tensors, chunks, device)
    try:
        results = call.run(rows)
    except Exception as error:
        if refused is not None:
            return "both raise", ""
        if is_named(error):
            return "named error", ""
        return "unnamed error", f"{type(error).__name__}: {error}"
    if refused is not None:
        return "only torch raises", f"{type(refused).__name__}: {refused}"
    if len(results) != len(right):
        return "differs", f"{len(results)} results, right are {len(right)}"
    for number, (value, expected) in enumerate(zip(results, right, strict=True)):
        difference = _difference(_whole(value), _whole(expected))
        if difference:
            return "differs", f"result {number} {difference}"
    return "equal", ""


def _rows(tensors: list[Tensor], chunks: int | None, device: str) -> list[Tensor]:
    """Returns tensors as rows of a full graph."""
    nodes = tensors[0].shape[0]
    draw = torch.Generator().manual_seed(3)
    edges = torch.randint(0, nodes, (2, 2 * nodes + 3), generator=draw)
    data = Data(edge_index=edges, num_nodes=nodes)
    names = [f"rows_{number}" for number in range(len(tensors))]
    for name, tensor in zip(names, tensors, strict=True):
        data[name] = tensor.cpu().clone()
    options: dict[str, Any] = {} if chunks is None else {"offload": True, "num_chunks": chunks}
    if device == "cuda":
        options["device"] = f"cuda:{torch.cuda.current_device()}"
    data = peergraph_pyg.full_graph(data, **options)
    return [data[name] for name in names]


def _whole(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    with torch.no_grad():
        value = value.detach()
        return (value.full_tensor() if hasattr(value, "full_tensor") else value).cpu()


def _difference(value: Any, right: Any) -> str:
    if not isinstance(value, Tensor) or not isinstance(right, Tensor):
        # Of what a function does not depend on: rows have zeros where plain tensors have nothing.
        if right is None and isinstance(value, Tensor) and not value.any():
            return ""
        is_equal = value is right or bool(value == right) or (value != value and right != right)
        return "" if is_equal else f"is {value}, right is {right}"
    for name in ("shape", "dtype", "layout"):
        if getattr(value, name) != getattr(right, name):
            return f"has {name} {getattr(value, name)}, right is {getattr(right, name)}"
    right, value = right.detach().to_dense(), value.to_dense()
    is_exact = not (right.is_floating_point() or right.is_complex())
    tolerance = 1e-5 if right.dtype in (torch.float32, torch.complex64) else 1e-8
    if is_exact and torch.equal(value, right):
        return ""
    if not is_exact and torch.allclose(value, right, tolerance, tolerance, equal_nan=True):
        return ""
    return f"is {value.flatten()[:6].tolist()}, right is {right.flatten()[:6].tolist()}"
