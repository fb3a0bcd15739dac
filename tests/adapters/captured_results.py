"""The loop that `capture` replaces, shapes that it exceeds, and the comparison of results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from peergraph.integration import SampleCounts
from peergraph.integration.captured import captured_training


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), 0.01)


def loop(
    loader: Any, model: nn.Module, optimizer: Any, loss: Any, epochs: int = 2
) -> Iterator[Any]:
    """Trains on a loader's batches; yields what the loss returned for each."""
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            result = loss(model, batch)
            value, *others = result if isinstance(result, tuple) else (result,)
            value.backward()
            optimizer.step()
            yield (value.detach(), *others) if others else value.detach()


def loop_results(loader: Any, model: nn.Module, loss: Any, epochs: int = 2) -> list[Any]:
    return list(loop(loader, model, adam(model), loss, epochs))


def assert_same_results(results: list[Any], expected: list[Any], scale: float = 1) -> None:
    """Losses differ only by the order of sums; what else they return is equal.

    Args:
        scale: of the usual tolerance.
    """
    assert len(results) == len(expected)
    for pair in zip(results, expected, strict=True):
        (value, *others), (expected_value, *of_loop) = (
            each if isinstance(each, tuple) else (each,) for each in pair
        )
        torch.testing.assert_close(value, expected_value, rtol=2e-4 * scale, atol=2e-5 * scale)
        assert all(map(torch.equal, others, of_loop))


def shrink_shapes(monkeypatch: pytest.MonkeyPatch, hop: int, rows: int) -> None:
    """Makes shapes that `capture` chooses smaller, by `rows` new nodes of each type in a hop."""
    find = captured_training.find_bounds

    def find_smaller(*args: Any) -> SampleCounts:
        nodes, edges = find(*args)
        smaller = {t: [*n[:hop], n[hop] - rows, *n[hop + 1 :]] for t, n in nodes.items()}
        return SampleCounts(smaller, edges)

    monkeypatch.setattr(captured_training, "find_bounds", find_smaller)
