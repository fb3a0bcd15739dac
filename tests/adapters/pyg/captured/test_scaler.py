"""Gradients that a GradScaler scales, in captured steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch_geometric.data import Data

import peergraph_pyg
from tests.adapters.captured_results import adam
from tests.adapters.pyg.captured.training import loss_of, make_loader, sage


def scaler_of(device: torch.device, **options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler(device.type, growth_interval=3, **options)


def large_loss(model: nn.Module, batch: Any) -> Tensor:
    return 8 * loss_of(model, batch)


def clip(model: nn.Module, *_: Any) -> None:
    clip_grad_norm_(model.parameters(), 0.1)


def loop_losses(
    loader: Any, model: nn.Module, optimizer: Any, scaler: Any, dtype: torch.dtype | None
) -> Tensor:
    """As the documentation of torch has it, with clipped gradients."""
    values = []
    for _ in range(3):
        for batch in loader:
            optimizer.zero_grad()
            with torch.autocast(batch.x.device.type, dtype, enabled=dtype is not None):
                value = large_loss(model, batch)
            scaler.scale(value).backward()
            scaler.unscale_(optimizer)
            clip(model)
            scaler.step(optimizer)
            scaler.update()
            values.append(value.detach().float())
    return torch.stack(values)


@pytest.mark.parametrize("scale", [2.0**10, 2.0**127])
@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_losses_and_scales_are_those_of_the_loop(
    plain: Data, device: torch.device, scale: float, dtype: torch.dtype | None
) -> None:
    """A scale of 2^127 makes gradients infinite: steps are skipped until it is small enough."""
    if device.type == "cpu" and dtype is not None:
        pytest.skip("autocast of the CPU is tested with bfloat16")
    results = []
    for is_captured in (False, True):
        loader, model = make_loader(plain, device), sage(device)
        optimizer, scaler = adam(model), scaler_of(device, init_scale=scale, backoff_factor=2**-20)
        if not is_captured:
            torch.manual_seed(9)
            results.append((loop_losses(loader, model, optimizer, scaler, dtype), scaler))
            continue
        training = peergraph_pyg.capture(loader, model, optimizer, large_loss, scaler=scaler)
        optimizer.register_step_pre_hook(partial(clip, model))
        torch.manual_seed(9)
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            values = [value.float() for _ in range(3) for value in training]
        results.append((torch.stack(values), scaler))
        if device.type == "cuda":
            assert training.num_captured > 9
    (expected, of_loop), (losses, of_training) = results
    rough = dtype is not None
    torch.testing.assert_close(
        losses, expected, rtol=2e-2 if rough else 2e-4, atol=2e-3 if rough else 2e-5
    )
    assert of_training.get_scale() == of_loop.get_scale() != scale
    untrained = sage(device)
    assert not torch.equal(next(model.parameters()), next(untrained.parameters()))


def test_what_a_scaler_must_be(plain: Data, device: torch.device) -> None:
    def capture(scaler: Any, make: Any = torch.optim.Adam) -> Any:
        loader, model = make_loader(plain, device), sage(device)
        optimizer = make(model.parameters(), 0.01)
        return peergraph_pyg.capture(loader, model, optimizer, loss_of, scaler=scaler)

    with pytest.raises(TypeError, match="scaler must be a torch.amp.GradScaler, got int"):
        capture(3)
    if device.type == "cuda":
        with pytest.raises(NotImplementedError, match="RMSprop without fused=True"):
            capture(scaler_of(device), torch.optim.RMSprop)
        with pytest.raises(ValueError, match="expected one for 'cuda', got 'cpu'"):
            capture(torch.amp.GradScaler("cpu"))
    assert len(capture(torch.amp.GradScaler(device.type, enabled=False))) == 7
