"""Optimizers in captured steps: learning rates, loaded states, torch's fused steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import peergraph_pyg
from tests.adapters.captured_results import adam, loop
from tests.adapters.pyg.captured.training import (
    captured,
    loss_of,
    make_loader,
    sage,
)


@pytest.mark.gpus(1)
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop])
def test_replays_equal_steps_that_run(plain: Data, make: Any) -> None:
    """Dropout included, with a learning rate that changes in the epoch and after it."""
    device = torch.device("cuda", 0)

    def losses(warmup: int) -> tuple[list[Tensor], Any]:
        loader, model = make_loader(plain, device), sage(device, 0.5)
        optimizer = make(model.parameters(), 0.01)
        training = peergraph_pyg.capture(loader, model, optimizer, loss_of, warmup=warmup)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.3)
        torch.manual_seed(9)
        actual = []
        for _ in range(3):
            for value in training:
                actual.append(value)
                schedule.step()
        return actual, training

    (expected, eager), (actual, training) = losses(1000), losses(3)
    assert eager.num_captured == 0
    assert training.num_captured == 15
    torch.testing.assert_close(torch.stack(actual), torch.stack(expected), rtol=2e-4, atol=2e-5)


def test_rates_of_schedulers(plain: Data, device: torch.device) -> None:
    """A scheduler that was made before, and one that is made after the capture."""
    for early in (True, False):
        results = []
        for is_captured in (True, False):
            loader, model = make_loader(plain, device), sage(device)
            optimizer = adam(model)
            make = torch.optim.lr_scheduler.ExponentialLR
            schedule = make(optimizer, 0.7) if early else None
            run: Any = loader
            if is_captured:
                run = peergraph_pyg.capture(loader, model, optimizer, loss_of)
            schedule = schedule or make(optimizer, 0.7)
            torch.manual_seed(9)
            values = []
            for _ in range(3):
                values += (
                    captured(run, 1) if is_captured else loop(loader, model, optimizer, loss_of, 1)
                )
                schedule.step()
            results.append(torch.stack(values))
        torch.testing.assert_close(results[0], results[1], rtol=2e-4, atol=2e-5)


def test_a_state_that_is_loaded(plain: Data, device: torch.device) -> None:
    """A loaded state gives the optimizer new tensors, and a Python number as learning rate."""

    def losses(is_captured: bool) -> Tensor:
        loader, model = make_loader(plain, device), sage(device)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        run: Any = loader
        if is_captured:
            run = peergraph_pyg.capture(loader, model, optimizer, loss_of)

        def epoch() -> list[Tensor]:
            if is_captured:
                return captured(run, 1)
            return list(loop(loader, model, optimizer, loss_of, 1))

        torch.manual_seed(9)
        result = epoch()
        states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        result += epoch()
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        optimizer.param_groups[0]["lr"] = 0.002
        result += epoch()
        return torch.stack(result)

    torch.testing.assert_close(losses(True), losses(False), rtol=2e-4, atol=2e-5)


@pytest.mark.gpus(1)
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
def test_steps_are_fused_where_nobody_chose(plain: Data, make: Any) -> None:
    device = torch.device("cuda", 0)
    results = []
    for options in ({}, {"foreach": True}, {"fused": False}, {"fused": True}):
        model = sage(device)
        optimizer = make(model.parameters(), 0.01, **options)
        training = peergraph_pyg.capture(make_loader(plain, device), model, optimizer, loss_of)
        assert optimizer.param_groups[0]["fused"] is options.get("fused", None if options else True)
        torch.manual_seed(9)
        results.append(torch.stack(captured(training)))
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, rtol=2e-4, atol=2e-5)


@pytest.mark.gpus(1)
def test_steps_taken_before_are_counted(plain: Data) -> None:
    """The counts of an optimizer that has taken steps are on the host, in the default dtype."""
    device = torch.device("cuda", 0)
    results = []
    for is_captured in (True, False):
        loader, model = make_loader(plain, device), sage(device)
        optimizer = adam(model)
        torch.manual_seed(9)
        values = list(loop(loader, model, optimizer, loss_of, 1))
        if is_captured:
            values += captured(peergraph_pyg.capture(loader, model, optimizer, loss_of), 1)
        else:
            values += loop(loader, model, optimizer, loss_of, 1)
        results.append(torch.stack(values))
    torch.testing.assert_close(*results, rtol=2e-4, atol=2e-5)
