"""Normalisation over all ranks' rows: results, gradients and buffers equal those of one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peergraph.fullgraph import distribute
from peergraph.memory import Group
from tests.fullgraph.gpu_numbers import each_place
from tests.fullgraph.partitioned_cases import Case, Inputs, check_cases, make_inputs, make_layout

CPU = torch.device("cpu")


def prepared(module: nn.Module) -> nn.Module:
    """The module in float64 with parameters that are no zeros and ones."""
    module = copy.deepcopy(module).double()
    generator = torch.Generator().manual_seed(2)
    for parameter in module.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator).double())
    return module


def norm(
    module: nn.Module, rows: str = "x", change: Callable[[Tensor], Tensor] | None = None
) -> Case:
    """Two steps of training, then evaluation; with the parameters' gradients and the buffers."""

    def run(i: Inputs) -> Any:
        layer = prepared(module).to(i.b.device)
        x = getattr(i, rows)
        x = change(x) if change else x
        trained = [layer(x), layer(x * 2 - 1)]
        loss = sum((out * out.detach().cos()).sum() for out in trained)
        parameters = list(layer.parameters())
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True) if parameters else ()
        layer.eval()
        return [*trained, layer(x), *gradients, *(b.clone() for b in layer.buffers())]

    return run


def native(x: Tensor, i: Inputs, training: bool) -> list[Tensor]:
    """The operation below ``F.batch_norm``, with its own gradient."""
    mean, variance = (
        torch.zeros(6, device=i.b.device).double(),
        torch.ones(6, device=i.b.device).double(),
    )
    with torch._C.DisableTorchFunctionSubclass():
        out = torch.native_batch_norm(x, i.b, i.g, mean, variance, training, 0.1, 1e-5)[0]
    return [out, mean, variance]


def legit(i: Inputs) -> list[Tensor]:
    mean, variance = (
        torch.zeros(6, device=i.b.device).double(),
        torch.ones(6, device=i.b.device).double(),
    )
    op = torch.ops.aten._native_batch_norm_legit
    return [
        op.default(i.x, i.b, i.g, mean, variance, True, 0.1, 1e-5)[0],
        op.no_stats(i.x, i.b, None, True, 0.1, 1e-5)[0],
        *(mean, variance),
    ]


def frozen(i: Inputs) -> Tensor:
    """Evaluation with gradients of input and parameters."""
    mean, variance = i.w.detach().t()[:2].contiguous()
    return F.batch_norm(i.x, mean, variance.abs(), i.b, i.g)


def second_derivatives(i: Inputs) -> list[Tensor]:
    """Gradients of training and of evaluation, to be differentiated again."""
    trained = F.batch_norm(i.x, None, None, i.b, i.g, True)
    outs = trained * trained * trained, frozen(i) * trained.detach()
    leaves = i.x, i.b, i.g
    return [g for out in outs for g in torch.autograd.grad(out.sum(), leaves, create_graph=True)]


CASES: dict[str, Case] = {
    "BatchNorm1d": norm(nn.BatchNorm1d(6)),
    "BatchNorm1d of 3 dimensions": norm(nn.BatchNorm1d(2), "h"),
    "BatchNorm1d of the last dimension": norm(nn.BatchNorm1d(6), "x", lambda x: x.t().unsqueeze(0)),
    "BatchNorm1d with cumulative statistics": norm(nn.BatchNorm1d(6, momentum=None)),
    "BatchNorm1d without running statistics": norm(nn.BatchNorm1d(6, track_running_stats=False)),
    "BatchNorm1d without parameters": norm(nn.BatchNorm1d(6, affine=False)),
    "BatchNorm1d of a selection": lambda i: norm(nn.BatchNorm1d(6))(
        Inputs(**{**vars(i), "x": i.x[i.mask]})
    ),
    "BatchNorm1d of few rows": lambda i: nn.BatchNorm1d(6).to(i.x)(i.x[i.few]),
    "batch_norm with gradients of its parameters": lambda i: F.batch_norm(
        i.x, None, None, i.b, i.g, True
    ),
    "batch_norm of frozen statistics": frozen,
    "batch_norm, differentiated twice": second_derivatives,
    "torch.batch_norm": lambda i: torch.batch_norm(
        i.x, i.b, i.g, None, None, True, 0.1, 1e-5, False
    ),
    "native_batch_norm": lambda i: [*native(i.x, i, True), *native(i.x, i, False)],
    "_native_batch_norm_legit": legit,
    "LayerNorm": norm(nn.LayerNorm(6)),
    "LayerNorm of 3 dimensions": norm(nn.LayerNorm([2, 3]), "h"),
    "LayerNorm without parameters": norm(nn.LayerNorm(6, elementwise_affine=False)),
    "GroupNorm": norm(nn.GroupNorm(3, 6)),
    "GroupNorm of 3 dimensions": norm(nn.GroupNorm(2, 2), "h"),
    "InstanceNorm1d": norm(nn.InstanceNorm1d(2), "h"),
    "InstanceNorm1d with running statistics": norm(
        nn.InstanceNorm1d(2, affine=True, track_running_stats=True), "h"
    ),
    "InstanceNorm1d of channels": norm(nn.InstanceNorm1d(13)),
    "InstanceNorm1d over rows": norm(
        nn.InstanceNorm1d(6, affine=True, track_running_stats=True), "x", lambda x: x.t()
    ),
    "InstanceNorm1d over rows of two instances": norm(
        nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
        "h",
        lambda x: x.permute(1, 2, 0),
    ),
}
if hasattr(nn, "RMSNorm"):
    CASES["RMSNorm"] = norm(nn.RMSNorm(6))


@each_place(1, 2, 3)
def test_equal_to_one_process(world_size: int, device_type: str) -> None:
    check_cases(__name__, world_size, device_type)


class _Sync(nn.SyncBatchNorm):
    """As on GPUs of several ranks, where the operations of its gradient run."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.batch_norm_stats(input, self.eps)[0]


def test_cudnn_operations() -> None:
    """What torch calls on GPUs where no function of torch is seen, for instance in scripts."""
    i = make_inputs(CPU)
    x = distribute(i.x, make_layout(Group.current(device=CPU)))
    statistics = [
        torch.zeros(6, device=i.b.device).double(),
        torch.ones(6, device=i.b.device).double(),
    ]
    out, mean, invstd, reserve = torch.ops.aten.cudnn_batch_norm(
        x, i.b, i.g, *statistics, True, 0.1, 1e-5
    )
    plain = i.x.clone().requires_grad_()
    running = [
        torch.zeros(6, device=i.b.device).double(),
        torch.ones(6, device=i.b.device).double(),
    ]
    expected = F.batch_norm(plain, *running, i.b, i.g, True)
    torch.testing.assert_close(out.full_tensor(), expected.detach())
    torch.testing.assert_close(statistics, running)
    (expected_result,) = torch.autograd.grad((expected * expected.detach()).sum(), plain)
    actual = torch.ops.aten.cudnn_batch_norm_backward(
        x, out, i.b, *statistics, mean, invstd, 1e-5, reserve
    )
    torch.testing.assert_close(actual[0].full_tensor(), expected_result)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_narrow_types(dtype: torch.dtype) -> None:
    """Statistics are in float32 at least; parameters may be of either type."""
    i = make_inputs(CPU)
    x = distribute(i.x.to(dtype), make_layout(Group.current(device=CPU))).requires_grad_()
    for parameter_dtype in (torch.float32, dtype):
        layer = nn.BatchNorm1d(6).to(parameter_dtype)
        out = layer(x)
        assert out.dtype == dtype
        (out.float() * i.x.float().cos()[:, :1].mean()).sum().backward()
        assert layer.weight.grad.dtype == parameter_dtype
        assert x.grad.dtype == dtype
        reference = nn.BatchNorm1d(6).double()
        expected = reference(i.x.to(dtype).double()).to(dtype)
        torch.testing.assert_close(out.full_tensor(), expected)
        torch.testing.assert_close(layer.running_var, reference.running_var.to(parameter_dtype))


def test_large_means_lose_nothing() -> None:
    """Deviations are summed, not squares."""
    i = make_inputs(CPU)
    x = (i.x + 1e4).float()
    actual = nn.BatchNorm1d(6)(distribute(x, make_layout(Group.current(device=CPU))))
    expected = nn.BatchNorm1d(6).double()(x.double()).float()
    torch.testing.assert_close(actual.full_tensor(), expected, rtol=1e-3, atol=2e-3)


def test_rejects() -> None:
    i = make_inputs(CPU)
    x = distribute(i.x, make_layout(Group.current(device=CPU)))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        F.batch_norm(x[torch.tensor([4])], None, None, training=True)
    with pytest.raises(NotImplementedError, match="rows are partitioned along 1"):
        F.batch_norm(x.t(), None, None, training=True)
    with pytest.raises(NotImplementedError, match="along the partitioned dimension"):
        F.layer_norm(x, x.shape)
    with pytest.raises(NotImplementedError, match="leave out convert_sync_batchnorm"):
        _Sync(6)(x)
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        F.instance_norm(x.unsqueeze(2))
