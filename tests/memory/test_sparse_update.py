"""Sums of equal rows and the optimizers' update: against plain torch, and CPU against GPU bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory import Group, Table, Tiers
from peergraph.memory.device.launching import DTYPES
from peergraph.memory.training.coalesce import SparseRows, accumulator, coalesce
from peergraph.memory.training.trained_table import TrainedTable
from tests.memory.tables import MEMORY_KINDS, same_bits, split, table_of
from tests.named_case import named_cases
from tests.pairwise import pairwise

ROWS = 23
WIDTHS = [1, 2, 3, 4, 8, 33, 64]
RULES = {
    "sgd": (0, {"step_size": 0.3}),
    "adagrad": (1, {"step_size": 0.2, "eps": 1e-3}),
    "adam": (2, {"step_size": 0.1, "eps": 1e-4, "beta1": 0.8, "beta2": 0.9}),
}


def normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def plain_update(rule: str, weight: Tensor, grad: Tensor, states: list[Tensor]) -> Tensor:
    numbers = RULES[rule][1]
    step = numbers["step_size"]
    if rule == "sgd":
        return weight - step * grad
    if rule == "adagrad":
        states[0] += grad**2
        return weight - step * grad / (states[0].sqrt() + numbers["eps"])
    states[0] += (1 - numbers["beta1"]) * (grad - states[0])
    states[1] += (1 - numbers["beta2"]) * (grad**2 - states[1])
    return weight - step * states[0] / (states[1].sqrt() + numbers["eps"])


def updated(
    rule: str, dtype: torch.dtype, width: int, kind: str, device: torch.device
) -> tuple[Tensor, ...]:
    """Rows and states after two updates, in order of rows."""
    num_states, numbers = RULES[rule]
    group = Group.current(device=device)
    table = table_of(normal((ROWS, width), dtype, 0), split(ROWS, kind), group)
    trained = TrainedTable(table)
    states = [trained.new_state(0.25) for _ in range(num_states)]
    optimizer = getattr(_C.Optimizer, rule)
    native = _C.UpdateRule(optimizer=optimizer, grad_scale=0.5, **numbers)
    for seed in (1, 2):
        rows = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))[:9]
        grads = normal((9, width), accumulator(dtype), 10 + seed)
        trained.update([SparseRows(rows.to(device), grads.to(device))], native, states)
    result = tuple(t.read() for t in (table, *states))
    for t in (table, *states):
        t.close()
    return result


@named_cases(("rule", "dtype", "width"), pairwise(list(RULES), list(DTYPES), [1, 2, 3, 8, 33]))
def test_update(rule: str, dtype: torch.dtype, width: int, device: torch.device) -> None:
    weight, *states = updated(rule, dtype, width, "mixed", device)
    expected = normal((ROWS, width), dtype, 0).double()
    plain_states = [torch.full((ROWS, width), 0.25, dtype=torch.float64) for _ in states]
    for seed in (1, 2):
        rows = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))[:9]
        grads = normal((9, width), accumulator(dtype), 10 + seed).double()
        of_rows = [state[rows] for state in plain_states]
        new = plain_update(rule, expected[rows], 0.5 * grads, of_rows)
        expected[rows] = new.to(dtype).double()  # weights are rounded, states are not
        for state, changed in zip(plain_states, of_rows, strict=True):
            state[rows] = changed
    limit = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float64: 1e-12}.get(dtype, 1e-5)
    torch.testing.assert_close(weight.double(), expected, rtol=limit, atol=limit)
    for state, plain in zip(states, plain_states, strict=True):
        assert state.dtype == accumulator(dtype)
        torch.testing.assert_close(state.double(), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.gpus(1)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cpu_and_gpu_agree_bit_for_bit(rule: str, dtype: torch.dtype) -> None:
    for width in WIDTHS:
        for kind in MEMORY_KINDS:
            cpu, gpu = (
                updated(rule, dtype, width, kind, torch.device(place)) for place in ("cpu", "cuda")
            )
            assert all(map(same_bits, cpu, gpu)), (width, kind)


def coalesced(
    dtype: torch.dtype, width: int, count: int, keys: int, device: torch.device
) -> SparseRows:
    generator = torch.Generator().manual_seed(count)
    chosen = torch.randint(keys, (count,), generator=generator)
    values = normal((count, width), dtype, 7)
    return coalesce(SparseRows(chosen.to(device), values.to(device)))


@named_cases(
    ("dtype", "count", "keys"),
    [(torch.float32, *size) for size in [(0, 5), (1, 5), (50, 1000), (300, 7), (1000, 2)]]
    + [(dtype, 300, 7) for dtype in DTYPES if dtype != torch.float32]
    + [(torch.bfloat16, 1000, 2), (torch.float64, 0, 5)],
)
def test_coalesce(dtype: torch.dtype, count: int, keys: int, device: torch.device) -> None:
    for width in (1, 3, 4, 40):
        result = coalesced(dtype, width, count, keys, device)
        chosen = torch.randint(keys, (count,), generator=torch.Generator().manual_seed(count))
        values = normal((count, width), dtype, 7).double()
        unique, inverse = chosen.unique(return_inverse=True)
        sums = torch.zeros((len(unique), width), dtype=torch.float64).index_add_(0, inverse, values)
        assert torch.equal(result.keys.cpu(), unique)
        assert result.values.dtype == accumulator(dtype)
        torch.testing.assert_close(result.values.cpu().double(), sums, rtol=1e-4, atol=1e-4)
        if device.type == "cuda":
            assert same_bits(
                result.values, coalesced(dtype, width, count, keys, torch.device("cpu")).values
            )


def update_natively(**changed: Any) -> None:
    group = Group.current(device="cpu")
    table, state = (
        Table.create((4, 2), torch.float32, changed.pop(name, Tiers(host=4)), group)
        for name in ("tiers", "state_tiers")
    )
    arguments = {
        "table": table.view,
        "dtype": _C.DType.float32,
        "states": [state.view],
        "rule": _C.UpdateRule(optimizer=_C.Optimizer.adagrad, step_size=1.0),
        "rows": torch.zeros(0, dtype=torch.int64),
        "grads": torch.zeros(0, 2),
        "launch": _C.Launch(device=-1, stream=0, num_threads=1),
        **changed,
    }
    _C.sparse_update(**arguments)


def test_bad_arguments() -> None:
    update_natively()
    for changed, match in (
        ({"grads": torch.zeros(0, 3)}, "width must be that of the table's rows"),
        (
            {"dtype": _C.DType.float16, "grads": torch.zeros(0, 4)},
            "a state must have the table's rows and width",
        ),
        ({"grads": torch.zeros(1, 2)}, "grads must be .* a row for each of rows"),
        ({"grads": torch.zeros(0)}, "grads must be .* a row for each of rows"),
        ({"grads": torch.zeros(0, 2).double()}, "grads must have the accumulator's type"),
        ({"grads": torch.zeros(0, 2).half()}, "grads must have the accumulator's type"),
        ({"rows": torch.zeros(0, dtype=torch.int32)}, "rows must be int64"),
        ({"states": []}, "the optimizer takes 1 states, got 0"),
        ({"states": [_C.TableView()] * 3}, "at most 2 states"),
        ({"state_tiers": Tiers(replicated=4)}, "a state must not be replicated"),
        (
            {"rule": _C.UpdateRule(optimizer=_C.Optimizer(7), step_size=1.0)},
            "optimizer must be 0..2",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            update_natively(**changed)
