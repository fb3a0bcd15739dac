"""Functions of lists of tensors, optimizers with ``foreach`` and ``fused``, and scripted models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from peergraph.fullgraph import distribute
from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor
from peergraph.memory import Group
from peergraph.testing import run_ranks

from .offload.test_offloaded_tensor import inputs, make

OPTIMIZERS = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1, foreach=True),
    "AMSGrad": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True, foreach=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True, foreach=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.1, foreach=True),
}


def tensors() -> Iterator[tuple[Tensor, Tensor]]:
    """Rows [n, 6] and [n, 1]: plain, on the device, and offloaded in one chunk and in three."""
    plain, s, _, _ = inputs()
    yield plain, s
    for count in (1, 3):
        x, s_rows, _, _ = make(Group.current("cpu", timeout=60), count)
        if count == 1:
            yield distribute(plain, s_rows.row_layout), s_rows  # type: ignore[attr-defined]
        yield x, s_rows


def full(x: Tensor) -> Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def test_foreach_functions_in_place_return_their_list() -> None:
    for x, _ in tensors():
        rows = [x.detach().clone(), torch.ones(2)]
        assert torch._foreach_mul_(rows, 0.5) is not None
        for result, changed in zip(torch._foreach_mul_(rows, 0.5), rows, strict=True):
            assert result is changed


@pytest.mark.parametrize("ranks", [1, 3])
def test_foreach_optimizers(ranks: int) -> None:
    run_ranks(train_rows, ranks)


def train_rows() -> None:
    for name, make_optimizer in OPTIMIZERS.items():
        results = []
        for x, s in tensors():
            rows, scale = nn.Parameter(x.detach().clone()), nn.Parameter(torch.ones(6).double())
            optimizer = make_optimizer([rows, scale])
            for _ in range(3):
                optimizer.zero_grad()
                (rows * s * scale).sin().sum().backward()
                norm = nn.utils.clip_grad_norm_([rows, scale], 1.0)
                optimizer.step()
            results.append((full(rows.detach()), scale.detach(), norm))
        for other in results[1:]:
            torch.testing.assert_close(other, results[0], msg=lambda m, n=name: f"{n}: {m}")


def test_fused_optimizers_name_the_way_out() -> None:
    for x, s in tensors():
        if type(x) is Tensor:
            continue
        rows = nn.Parameter(x.detach().clone())
        for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
            optimizer = kind([rows], lr=0.1, fused=True)
            (rows * s).sum().backward()
            with pytest.raises(NotImplementedError, match="fused=False"):
                optimizer.step()


@pytest.mark.parametrize("ranks", [1, 3])
def test_scripted_models(ranks: int) -> None:
    run_ranks(run_scripted, ranks)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6).double()

    def forward(self, x: Tensor, s: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) * s


@torch.jit.script
def scripted_function(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight).tanh()


def run_scripted() -> None:
    torch.manual_seed(0)
    model = Model()
    scripted = torch.jit.script(model)
    results = []
    for x, s in tensors():
        weight = torch.ones(6, 6).double().requires_grad_()
        out = scripted_function(x, weight)
        out.square().sum().backward()
        grads = [weight.grad]
        if isinstance(x, OffloadedTensor):
            with pytest.raises(NotImplementedError, match="before it was scripted"):
                scripted(x, s)
            results.append((full(out.detach()), *grads))
            continue
        for _ in range(3):  # torch optimizes scripted functions in their first runs
            model.zero_grad()
            scripted(x, s).square().sum().backward()
            grads += [p.grad.clone() for p in model.parameters()]
        results.append((full(out.detach()), *grads))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0][: len(other)])
