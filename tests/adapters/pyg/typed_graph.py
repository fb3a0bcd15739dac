"""A small graph of several types, and comparisons of models on it with their accelerated copies."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.memory.device.default_machine import WORK
from peergraph_pyg import accelerate, explain, revert

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


def same_outputs(one: Any, other: Any, *inputs: Any, exactly: bool = False) -> None:
    """Compares the results of two models by node type."""
    expected, actual = other(*inputs), one(*inputs)
    for node_type, rows in expected.items():
        if exactly:
            assert rows is actual[node_type] is None or torch.equal(actual[node_type], rows)
        else:
            torch.testing.assert_close(actual[node_type], rows)


def sort_keys_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are multiplied in several pieces, and pairs are those that a sort finds."""
    monkeypatch.setattr("peergraph.aggregate.ops.typed_rows._PIECE_BYTES", 700)
    no_keys = replace(WORK, few_keys=1e-9, keys_per_edge=1e-9)
    monkeypatch.setattr("peergraph.aggregate.sparse.index_tensors.WORK", no_keys)


def check_unused_types(model: Any, x: Any, edges: Any, create_graph: bool = False) -> None:
    """Where the loss does not use some types, the same parameters have gradients as in PyG:
    optimizers with decay leave those alone that have none. Or gradients that can be differentiated.
    """
    fast = accelerate(copy.deepcopy(model))
    for used in (["paper"], ["author", "topic"], ["topic"]):
        names = []
        for each in (model, fast):
            inputs = {t: rows.clone().requires_grad_() for t, rows in x.items()}
            out = each(inputs, edges)
            loss = torch.stack([out[t].square().sum() for t in used]).sum()
            tensors = inputs | dict(each.named_parameters())
            gradients = torch.autograd.grad(
                loss, list(tensors.values()), create_graph=create_graph, allow_unused=True
            )
            pairs = zip(tensors, gradients, strict=True)
            names.append({name for name, grad in pairs if grad is not None})
        assert names[0] == names[1]


def check_missing_types(model: Any, x: Any, edges: Any) -> None:
    """Without some relations, then without a type; `x` and `edges` lack them afterwards."""
    del edges["topic", "of", "paper"], edges["topic", "near", "topic"]
    compare(model, x, edges)
    del x["topic"], edges["paper", "has", "topic"]
    compare(model, x, edges)


def check_int32_and_changed_edges(model: Any, x: Any, edges: Any) -> None:
    expected = model(x, edges)  # PyG takes int64 only.
    fast = accelerate(copy.deepcopy(model))
    for node_type, rows in fast(x, {t: e.int() for t, e in edges.items()}).items():
        torch.testing.assert_close(rows, expected[node_type])
    compare(model, x, edges)
    edges["author", "writes", "paper"][0, :50] = 3
    compare(model, x, edges)


def check_ids_out_of_range(model: Any, x: Any, edges: Any) -> None:
    edges["author", "writes", "paper"][0, 7] = NODES["author"]
    with pytest.raises(IndexError, match=r"relations\[2\].edge_index\[0\]\[7\] = 30"):
        model(x, edges)


def check_state_and_revert(model: Any, x: Any, edges: Any) -> None:
    """Parameters keep their names and values in the accelerated layer and back."""
    plain = type(model)
    names = list(model.state_dict())
    fast = accelerate(copy.deepcopy(model))
    assert list(fast.state_dict()) == names
    model.load_state_dict(fast.state_dict())
    assert type(revert(fast)) is plain
    same_outputs(fast, model, x, edges, exactly=True)


def check_compiled(model: Any, x: Any, edges: Any) -> None:
    fast = torch.compile(accelerate(copy.deepcopy(model)), backend="eager")
    same_outputs(fast, model, x, edges)


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
    actual = results(fast, x, edges)
    assert "relations in one pass" in str(explain(fast, x, edges))
    assert list(actual) == list(expected)
    for name, value in expected.items():
        other = actual[name]
        if value is None or other is None:  # Nothing reaches it, or a sum over no edges.
            assert value is None or not value.any(), name
            assert other is None or not other.any(), name
        else:
            assert other.dtype == value.dtype, name
            torch.testing.assert_close(other, value, rtol=tolerance, atol=tolerance, msg=name)


def check_mean_of_dropout(model: Any, x: Any, edges: Any, node_type: str) -> None:
    """The mean of many draws is the result without dropout; leaves the model in training."""
    expected = model.eval()(x, edges)[node_type]
    model.train()
    torch.manual_seed(0)
    with torch.no_grad():
        draws = torch.stack([model(x, edges)[node_type] for _ in range(2000)])
    error = draws.std(0) / len(draws) ** 0.5
    assert error.max() > 0
    assert ((draws.mean(0) - expected).abs() <= 6 * error + 1e-12).all()
