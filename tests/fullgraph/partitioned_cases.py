"""Runs a function on partitioned tensors on several ranks, and on plain ones, and compares."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph import PartitionedTensor, RowLayout, distribute
from peergraph.memory import Group
from peergraph.testing import run_ranks

NODES = 13
COUNTS = {1: [13], 2: [9, 4], 3: [6, 0, 7], 4: [5, 0, 2, 6]}  # rows by rank


@dataclass
class Inputs:
    """What cases compute with; float tensors need gradients."""

    x: Tensor  # [n, 6]
    y: Tensor  # [n, 6]
    s: Tensor  # [n, 1]
    v: Tensor  # [n]
    h: Tensor  # [n, 2, 3]
    mask: Tensor  # [n] bool
    few: Tensor  # [n] bool: two rows
    labels: Tensor  # [n] int64, 0..5
    targets: Tensor  # [n, 6] of 0 and 1
    ids: Tensor  # plain [5] int64
    w: Tensor  # plain [6, 4]
    b: Tensor  # plain [6]
    g: Tensor  # plain [6]
    c: Tensor  # plain, 0-dimensional
    heads: Tensor  # plain [2, 3, 4]


NODE_ROWS = ("x", "y", "s", "v", "h", "mask", "few", "labels", "targets")
Case = Callable[[Inputs], Any]


def make_inputs(device: torch.device) -> Inputs:
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    n = NODES
    few = torch.zeros(n, dtype=torch.bool)
    few[[3, 8]] = True
    inputs = Inputs(
        x=normal(n, 6),
        y=normal(n, 6),
        s=normal(n, 1),
        v=normal(n),
        h=normal(n, 2, 3),
        mask=torch.rand(n, generator=generator) < 0.5,
        few=few,
        labels=torch.randint(0, 6, (n,), generator=generator),
        targets=torch.randint(0, 2, (n, 6), generator=generator).double(),
        ids=torch.tensor([3, 1, 12, 3, -5]),
        w=normal(6, 4),
        b=normal(6),
        g=normal(6),
        c=normal(1)[0],
        heads=normal(2, 3, 4),
    )
    moved = {field.name: getattr(inputs, field.name).to(device) for field in fields(inputs)}
    return Inputs(**moved)


def make_layout(group: Group) -> RowLayout:
    order = torch.randperm(NODES, generator=torch.Generator().manual_seed(7))
    return RowLayout.from_order(group, order, COUNTS[group.world_size])


def partition(inputs: Inputs, layout: RowLayout) -> Inputs:
    rows = {name: distribute(getattr(inputs, name), layout) for name in NODE_ROWS}
    return replace(inputs, **rows)


def run_case(case: Case, inputs: Inputs) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The results and the gradients of the inputs, as plain tensors."""
    leaves = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    leaves = {
        name: value.detach().clone().requires_grad_(value.is_floating_point())
        for name, value in leaves.items()
    }
    results = case(Inputs(**leaves))
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    loss = torch.zeros((), dtype=torch.float64, device=inputs.x.device)
    for result in results:
        if isinstance(result, Tensor) and result.requires_grad:
            loss = loss + (result * weights_of(result)).sum()
    if loss.requires_grad:
        loss.backward()
    gradients = {name: value.grad for name, value in leaves.items() if value.grad is not None}
    return (
        [plain(result) for result in results],
        {name: plain(gradient) for name, gradient in gradients.items()},
    )


def weights_of(result: Tensor) -> Tensor:
    """Returns a weight for each element, the same for a plain and a partitioned result."""
    shape = tuple(result.shape)
    count = torch.Size(shape).numel()
    steps = torch.arange(count, dtype=torch.float64, device=result.device)
    weights = torch.cos(steps).view(shape)
    if isinstance(result, PartitionedTensor):
        return distribute(weights, result.row_layout, result.partitioned_dim)
    return weights


def plain(value: Any) -> Any:
    if isinstance(value, PartitionedTensor):
        value = value.full_tensor()
    return value.detach() if isinstance(value, Tensor) else value


def compare(case: Case, layout: RowLayout) -> None:
    inputs = make_inputs(layout.group.device)
    results, gradients = run_case(case, inputs)
    actual, found_gradients = run_case(case, partition(inputs, layout))
    assert len(actual) == len(results)
    for place, (value, expected) in enumerate(zip(actual, results, strict=True)):
        if isinstance(expected, Tensor):
            torch.testing.assert_close(value, expected, msg=lambda m, p=place: f"result {p}: {m}")
        elif isinstance(expected, float):
            assert abs(value - expected) < 1e-12, f"result {place}: {value} in place of {expected}"
        else:
            assert value == expected, f"result {place}: {value} in place of {expected}"
    assert found_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            found_gradients[name], gradient, msg=lambda m, n=name: f"gradient of {n}: {m}"
        )


def failures_on_rank(module: str) -> dict[str, str]:
    """The failed cases of CASES of a module, by name."""
    cases: dict[str, Case] = importlib.import_module(module).CASES
    layout = make_layout(Group.current(timeout=60))
    failed = {}
    for name, case in cases.items():
        try:
            compare(case, layout)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


def check_cases(module: str, world_size: int, device: str = "cpu") -> None:
    """Asserts that no case of the module fails on any of so many ranks, in one launch."""
    assert_none_failed(run_ranks(failures_on_rank, world_size, module, device=device))


def assert_none_failed(ranks: list[dict[str, str]]) -> None:
    """Asserts that no rank has an error by the name of a case."""
    failed = [(rank, *each) for rank, errors in enumerate(ranks) for each in errors.items()]
    assert not failed, "\n".join(f"rank {rank}, {name}: {error}" for rank, name, error in failed)
