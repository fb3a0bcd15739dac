"""A small graph of several types, and comparisons of models on it with their accelerated copies."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from peergraph_pyg import accelerate, explain

NODES = {"paper": 50, "author": 30, "topic": 7, "alone": 3}
WIDTHS = {"paper": 12, "author": 8, "topic": 5, "alone": 4}
EDGES = {
    ("paper", "cites", "paper"): 200,
    ("paper", "of", "author"): 100,
    ("author", "writes", "paper"): 90,
    ("topic", "of", "paper"): 40,
    ("paper", "has", "topic"): 30,
    ("topic", "near", "topic"): 0,
}


def graph(device: torch.device, dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
    """Features, and edges of which the last five nodes of each type have none."""
    draws = torch.Generator().manual_seed(0)
    x = {t: torch.randn(n, WIDTHS[t], generator=draws).to(device, dtype) for t, n in NODES.items()}
    edges = {}
    for (source, name, target), count in EDGES.items():
        ends = [
            torch.randint(NODES[source], (count,), generator=draws),
            torch.randint(max(1, NODES[target] - 5), (count,), generator=draws),
        ]
        edges[source, name, target] = torch.stack(ends).to(device)
    return x, edges


def results(model: Any, x: Any, edges: Any) -> dict[str, Tensor | None]:
    """Outputs, and gradients of a weighted sum of them, by name."""
    inputs = {t: rows.detach().clone().requires_grad_() for t, rows in x.items()}
    model.zero_grad()
    out = {t: rows for t, rows in model(inputs, edges).items() if rows is not None}
    total = sum(
        (rows * torch.linspace(0.5, 1.5, rows.numel(), device=rows.device).view_as(rows)).sum()
        for rows in out.values()
    )
    total.backward()  # type: ignore[union-attr]
    values: dict[str, Tensor | None] = {f"out {t}": rows.detach() for t, rows in out.items()}
    values |= {f"x {t}": rows.grad for t, rows in inputs.items()}
    return values | {name: p.grad for name, p in model.named_parameters()}


def check_half_precision(model: Any, x: Any, edges: Any) -> None:
    """Under autocast, results are as near to those of float32 as PyG's."""
    fast = accelerate(copy.deepcopy(model))
    device = next(iter(x.values())).device
    exact = results(model, x, edges)
    with torch.autocast(device.type, torch.bfloat16):
        both = results(model, x, edges), results(fast, x, edges)
    errors = []
    for values in both:
        total = torch.zeros((), dtype=torch.float64)
        for name, value in exact.items():
            if value is not None and value.any():
                other, plain = values[name], both[0][name]
                assert other is not None
                assert plain is not None
                assert other.dtype == plain.dtype, name
                total += ((other - value).norm() / value.norm()).cpu().double()
        errors.append(float(total))
    assert errors[1] < 2 * errors[0]


def compare(model: Any, x: Any, edges: Any, tolerance: float = 1e-10) -> None:
    """Compares a model with its accelerated copy, which must run as one operation."""
    fast = accelerate(copy.deepcopy(model))
    expected = results(model, x, edges)
    found = results(fast, x, edges)
    assert "relations in one pass" in str(explain(fast, x, edges))
    assert list(found) == list(expected)
    for name, value in expected.items():
        other = found[name]
        if value is None or other is None:  # Nothing reaches it, or a sum over no edges.
            assert value is None or not value.any(), name
            assert other is None or not other.any(), name
        else:
            assert other.dtype == value.dtype, name
            torch.testing.assert_close(other, value, rtol=tolerance, atol=tolerance, msg=name)
