"""Training scripts for one process, unchanged, on partitioned tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from peergraph.fullgraph import PartitionedTensor, keyed_random
from tests.fullgraph.gpu_numbers import each_place
from tests.fullgraph.partitioned_cases import Case, Inputs, check_cases


class Residual(nn.Module):
    """A deep residual network with normalisation and dropout."""

    def __init__(self, norm: Callable[[int], nn.Module], checkpoints: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norms = nn.ModuleList(norm(8) for _ in range(3))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.last = nn.Linear(8, 6)
        self.checkpoints = checkpoints

    def step(self, x: Tensor, norm: nn.Module, layer: nn.Module) -> Tensor:
        h: Tensor = layer(F.relu(norm(x)))
        return x + F.dropout(h, 0.4, self.training)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            if self.checkpoints:
                x = checkpoint(self.step, x, norm, layer, use_reentrant=False)
            else:
                x = self.step(x, norm, layer)
        out: Tensor = self.last(x)
        return out


Step = Callable[[Tensor, nn.Module, torch.optim.Optimizer], None]


def plain_step(loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss.backward()
    optimizer.step()


def clipped_step(loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    nn.utils.clip_grad_value_(model.parameters(), 0.3)
    optimizer.step()


def train(
    make_model: Callable[[], nn.Module],
    make_optimizer: Callable[..., torch.optim.Optimizer],
    step: Step = plain_step,
    schedule: bool = False,
) -> Case:
    """Losses and accuracies of some epochs, then the state of the model."""

    def run(i: Inputs) -> Any:
        torch.manual_seed(4)
        model = make_model().double().to(i.b.device)
        optimizer = make_optimizer(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2) if schedule else None
        results: list[Any] = []
        with nullcontext() if isinstance(i.x, PartitionedTensor) else keyed_random():
            for _ in range(4):
                model.train()
                optimizer.zero_grad()
                out = model(i.x.detach())
                loss = F.cross_entropy(out[i.mask], i.labels[i.mask])
                step(loss, model, optimizer)
                if scheduler is not None:
                    scheduler.step()
                model.eval()
                with torch.no_grad():
                    prediction = model(i.x).argmax(dim=-1)
                    correct = prediction[i.few] == i.labels[i.few]
                    accuracy = int(correct.sum()) / int(i.few.sum())
                results += [float(loss), loss.item(), accuracy]
        return [torch.tensor(results), *(value.clone() for value in model.state_dict().values())]

    return run


def autocast_with_scaler(i: Inputs) -> list[Tensor]:
    """Mixed precision: gradients of the scaled loss, unscaled, are finite and near float64's."""
    torch.manual_seed(4)
    device = i.b.device
    model = Residual(nn.BatchNorm1d).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler(device.type, init_scale=64.0)
    losses = []
    with nullcontext() if isinstance(i.x, PartitionedTensor) else keyed_random():
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16):
                out = model(i.x.detach().float())
                assert out.dtype == torch.bfloat16
                loss = F.cross_entropy(out[i.mask].float(), i.labels[i.mask])
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
    assert scaler.get_scale() == 64.0
    # Ten bits: sums in bfloat16 are rounded in another order.
    return [(torch.stack(losses).double() * 4).round() / 4]


def label_propagation(i: Inputs) -> list[Tensor]:
    """The loop of PyG's LabelPropagation, with a product for the neighbours."""
    y = F.one_hot(i.labels, 6).double()
    out = torch.zeros_like(y)
    out[i.mask] = y[i.mask]
    rest = (1 - 0.9) * out
    for _ in range(3):
        out = out @ (i.w @ i.w.t()).softmax(1)
        out.mul_(0.9).add_(rest)
        out = out.clamp_(0.0, 1.0)
    return [out]


def correct_and_smooth(i: Inputs) -> list[Tensor]:
    """The statements of PyG's CorrectAndSmooth."""
    soft = i.x.softmax(-1)
    y_true = F.one_hot(i.labels, 6)[i.mask].double()
    error = torch.zeros_like(soft)
    error[i.mask] = y_true - soft[i.mask]
    smoothed = error @ i.w @ i.w.t()
    sigma = error[i.mask].abs().sum() / y_true.size(0)
    scale = sigma / smoothed.abs().sum(dim=1, keepdim=True)
    scale = scale.detach()
    scale[scale.isinf() | (scale > 0.5)] = 1.0
    corrected = soft + scale * smoothed
    result = corrected.clone()
    result[i.mask] = y_true
    fixed = corrected.detach().clone()
    fixed[i.ids] = 0.5
    fixed[fixed.isnan()] = 0.0
    return [corrected, result, fixed]


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01),
}
CASES: dict[str, Case] = {
    **{name: train(lambda: Residual(nn.LayerNorm), make) for name, make in OPTIMIZERS.items()},
    "batch normalisation": train(lambda: Residual(nn.BatchNorm1d), OPTIMIZERS["Adam"]),
    "checkpoints": train(lambda: Residual(nn.LayerNorm, True), OPTIMIZERS["Adam"]),
    "checkpoints of batch normalisation": train(
        lambda: Residual(nn.BatchNorm1d, True), OPTIMIZERS["Adam"]
    ),
    "clipped gradients": train(
        lambda: Residual(nn.BatchNorm1d), OPTIMIZERS["AdamW"], clipped_step, schedule=True
    ),
    "autocast with GradScaler": autocast_with_scaler,
    "label propagation": label_propagation,
    "correct and smooth": correct_and_smooth,
}


@each_place(1, 2, 3)
def test_equal_to_one_process(world_size: int, device_type: str) -> None:
    check_cases(__name__, world_size, device_type)
