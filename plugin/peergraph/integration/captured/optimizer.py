"""Optimizers in a CUDA graph: which can be, and which of their settings a graph contains."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

# What schedulers keep in the groups for themselves, and what is no setting.
_NO_SETTINGS = {
    *("params", "initial_lr", "swa_lr", "max_lr", "min_lr"),
    *("base_momentum", "max_momentum"),
}
# They take the learning rate as a tensor, also in a CUDA graph.
_TENSOR_RATES = (torch.optim.Adam, torch.optim.AdamW)


def check_optimizer(optimizer: Any, model: torch.nn.Module) -> None:
    """Checks that the steps of an optimizer can be captured.

    Raises:
        TypeError: no optimizer of torch.
        NotImplementedError: naming an optimizer that counts or decides on the host.
        ValueError: it has parameters that are not the model's.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer)}")
    capturable = all("capturable" in group for group in optimizer.param_groups)
    if not capturable and type(optimizer) is not torch.optim.SGD:
        raise NotImplementedError(
            f"optimizer: {type(optimizer).__name__} cannot be captured; SGD and the optimizers of "
            "torch with the option capturable can"
        )
    ids = set(map(id, model.parameters()))
    if any(id(p) not in ids for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("optimizer: it has parameters that are not the model's")


def make_capturable(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Keeps the counts of steps on the GPU, and for Adam and AdamW the learning rates.

    Schedulers of torch write into a learning rate that is a tensor. Adam and AdamW take torch's
    fused step where nobody chose one: with counts on the GPU, the other one launches a kernel for
    each count.
    """
    for group in optimizer.param_groups:
        if "capturable" not in group:
            continue
        group["capturable"] = True
        if isinstance(optimizer, _TENSOR_RATES):
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(device)
            if type(optimizer) in _TENSOR_RATES:
                group["fused"] = _choose_fused(group)
        for parameter in group["params"]:
            step = optimizer.state.get(parameter, {}).get("step")
            if isinstance(step, Tensor):
                dtype = torch.float32 if group.get("fused") else step.dtype
                optimizer.state[parameter]["step"] = step.to(device, dtype)


def check_scaler(
    scaler: Any, optimizer: torch.optim.Optimizer, device: torch.device
) -> torch.amp.GradScaler:
    """Checks that an optimizer's steps with scaled gradients can be captured. Makes the scale.

    Raises:
        TypeError: no GradScaler.
        ValueError: it is for another type of device.
        NotImplementedError: on a GPU, the optimizer's step reads on the host whether gradients are
            finite.
    """
    if not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, got {type(scaler).__name__}")
    if not scaler.is_enabled():
        return scaler
    if scaler._device != device.type:
        raise ValueError(f"scaler: expected one for {device.type!r}, got {scaler._device!r}")
    scaler.scale(torch.zeros((), device=device))  # makes the tensors that a graph reads
    if device.type == "cuda":
        if not all(group.get("fused") for group in optimizer.param_groups):
            raise NotImplementedError(
                f"scaler: the step of {type(optimizer).__name__} without fused=True reads on the "
                "host whether gradients are finite; pass fused=True, to Adam, AdamW or SGD"
            )
        # torch sets it where the option is given; `make_capturable` chooses it later.
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    return scaler


def scaler_settings(scaler: torch.amp.GradScaler | None) -> tuple[Hashable, ...]:
    """Returns what a captured step contains of a scaler."""
    if scaler is None or not scaler.is_enabled():
        return ()
    return (
        scaler.get_growth_factor(),
        scaler.get_backoff_factor(),
        scaler.get_growth_interval(),
        *_contents((scaler._scale, scaler._growth_tracker)),
    )


def _choose_fused(group: dict[str, Any]) -> bool | None:
    """Returns the option `fused` for a group of parameters.

    True if the user set neither `fused` nor `foreach`, and torch has the fused step for them.
    """
    fused: bool | None = group.get("fused")
    is_free = fused is None and group.get("foreach") is None and not group.get("differentiable")
    if is_free and all(p.is_cuda and p.is_floating_point() for p in group["params"]):
        return True
    return fused


def settings_of(optimizer: torch.optim.Optimizer) -> Iterator[Hashable]:
    """Yields what a captured step contains: numbers, and addresses of the tensors that it reads."""
    for group in optimizer.param_groups:
        for name, value in group.items():
            if name not in _NO_SETTINGS:
                yield from _contents(value if isinstance(value, (tuple, list)) else (value,))
    # ``load_state_dict`` makes other tensors.
    for state in optimizer.state.values():
        yield from _contents(value for value in state.values() if isinstance(value, Tensor))


def _contents(values: Iterable[Any]) -> Iterator[Hashable]:
    for value in values:
        yield value.data_ptr() if isinstance(value, Tensor) else value
