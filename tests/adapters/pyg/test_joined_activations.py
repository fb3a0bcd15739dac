"""PyG's ready-made models whose bias, ReLU and dropout are one pass, against PyG's own code."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric import nn as pyg

from peergraph_pyg import accelerate, explain, revert
from tests.named_case import named_case, named_cases

from .layer_cases import WIDTH, assert_same, edge_inputs, script, x_and_edges
from .test_layers_on_batches import batch_of, trimmed

JOINED = "bias, relu and dropout in one pass"

MODELS: dict[str, Callable[..., torch.nn.Module]] = {
    "sage": lambda **options: pyg.GraphSAGE(WIDTH, 8, 3, 4, **options),
    "sage of sums": lambda **options: pyg.GraphSAGE(WIDTH, 8, 2, aggr="sum", **options),
    "sage, normalised": lambda **options: pyg.GraphSAGE(WIDTH, 8, 3, 4, normalize=True, **options),
    "gcn": lambda **options: pyg.GCN(WIDTH, 8, 3, 4, **options),
    "gcn without bias": lambda **options: pyg.GCN(WIDTH, 8, 3, 4, bias=False, **options),
    "gin": lambda **options: pyg.GIN(WIDTH, 8, 3, 4, **options),
    "gat": lambda **options: pyg.GAT(WIDTH, 8, 3, 4, heads=2, **options),
    "gat, one head's mean": lambda **options: pyg.GAT(WIDTH, 8, 2, 4, concat=False, **options),
    "gat v2": lambda **options: pyg.GAT(WIDTH, 8, 2, 4, v2=True, **options),
}


def plain_and_accelerated(
    kind: str, device: torch.device | str = "cpu", seed: int = 0, **options: Any
) -> tuple[torch.nn.Module, torch.nn.Module]:
    """PyG's model and the accelerated one."""
    torch.manual_seed(seed)
    theirs = MODELS[kind](**options).to(device)
    return theirs, accelerate(copy.deepcopy(theirs))


@named_cases("kind", MODELS)
def test_results_and_gradients(kind: str, device: torch.device) -> None:
    theirs, ours = plain_and_accelerated(kind, device)
    args = x_and_edges(device)
    assert JOINED in explain(ours, *args)
    for _ in range(2):
        assert_same(theirs, ours, *args, tolerance=1e-4)
    eval_pair = theirs.eval(), ours.eval()
    torch.testing.assert_close(*(model(*args) for model in eval_pair), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["sage", "gin", "gat"])
def test_batches(kind: str, device: torch.device) -> None:
    batch = batch_of(device)
    theirs, ours = plain_and_accelerated(kind, device)
    actual, expected = (trimmed(model, batch) for model in (ours, theirs))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    gradients = [
        torch.autograd.grad(out.square().sum(), list(model.parameters()))
        for out, model in ((actual, ours), (expected, theirs))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@named_cases("kind", MODELS)
def test_autocast(kind: str, dtype: torch.dtype, device: torch.device) -> None:
    """As near to results and gradients in float32 as PyG.

    Single graphs do not compare: where rounding changes the sign of a value, the gradient of ReLU
    changes altogether.
    """
    errors: list[list[float]] = [[], []]
    for seed in range(9):
        theirs, ours = plain_and_accelerated(kind, device, seed=seed)
        args = x_and_edges(device)
        _, exact = result_and_gradients(theirs, args)
        with torch.autocast(device.type, dtype):
            assert JOINED in explain(ours, *args)
            results = [result_and_gradients(model, args) for model in (ours, theirs)]
        assert results[0][0] == results[1][0]
        for each, (_, values) in zip(errors, results, strict=True):
            each.append(float((values - exact).norm() / exact.norm()))
    mine, pygs = (sorted(each)[4] for each in errors)
    assert mine < 1.5 * pygs + 1e-3


def result_and_gradients(model: torch.nn.Module, args: tuple[Tensor, ...]) -> tuple[Any, Tensor]:
    """The dtype of the result, and result and gradients in one row."""
    out = model(*args)
    result = torch.autograd.grad(out.float().square().sum(), list(model.parameters()))
    return out.dtype, torch.cat([each.detach().float().flatten() for each in (out, *result)])


def test_sage_under_autocast_has_no_fallback(device: torch.device) -> None:
    _, ours = plain_and_accelerated("sage", device)
    with torch.autocast(device.type, torch.bfloat16):
        assert "PyG" not in explain(ours, *x_and_edges(device))


def test_weights_of_edges(device: torch.device) -> None:
    theirs, ours = plain_and_accelerated("gcn", device)
    assert_same(theirs, ours, *x_and_edges(device), *edge_inputs("GCNConv", 40, device))


def test_dropout(device: torch.device) -> None:
    """Reproducible by the seed, off in eval mode, and as strong as PyG's."""
    theirs, ours = plain_and_accelerated("sage", device, dropout=0.5)
    args = x_and_edges(device)

    def run(seed: int, model: torch.nn.Module = ours) -> Tensor:
        torch.manual_seed(seed)
        out: Tensor = model(*args)
        return out

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    means = [
        torch.stack([run(seed, model) for seed in range(400)]).mean(0) for model in (ours, theirs)
    ]
    torch.testing.assert_close(*means, rtol=0.2, atol=0.3)
    ours.eval()
    theirs.eval()
    torch.testing.assert_close(run(1), run(2, theirs), rtol=1e-4, atol=1e-4)


def changed(change: Callable[[Any], object]) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        model = pyg.GraphSAGE(WIDTH, 8, 3, 4)
        change(model)
        return model

    return make


OTHERS: dict[str, Callable[[], torch.nn.Module]] = {
    "jumps": lambda: pyg.GraphSAGE(WIDTH, 8, 3, 4, jk="cat"),
    "a norm": lambda: pyg.GraphSAGE(WIDTH, 8, 3, 4, norm="layer_norm"),
    "elu": lambda: pyg.GraphSAGE(WIDTH, 8, 3, 4, act="elu"),
    "a hook of the activation": changed(lambda m: m.act.register_forward_hook(lambda *_: None)),
    "a hook of dropout": changed(lambda m: m.dropout.register_forward_hook(lambda *_: None)),
    "another dropout": changed(lambda m: setattr(m, "dropout", torch.nn.AlphaDropout(0.0))),
}


@named_cases("kind", OTHERS)
def test_other_models_run_pygs_steps(kind: str) -> None:
    torch.manual_seed(0)
    theirs = OTHERS[kind]()
    ours = accelerate(copy.deepcopy(theirs))
    args = x_and_edges()
    assert JOINED not in explain(ours, *args)
    assert_same(theirs, ours, *args)


def test_without_activation() -> None:
    theirs, ours = plain_and_accelerated("sage", act=None)
    assert_same(theirs, ours, *x_and_edges())


def test_hooks_of_layers_see_their_results() -> None:
    theirs, ours = plain_and_accelerated("sage")
    outputs: list[list[Tensor]] = [[], []]
    for model, result in zip((theirs, ours), outputs, strict=True):
        for conv in model.convs:  # type: ignore[union-attr]
            conv.register_forward_hook(lambda _, __, out, result=result: result.append(out))
        model(*x_and_edges())
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)


def test_layers_alone_have_their_bias() -> None:
    theirs, ours = plain_and_accelerated("gcn")
    args = x_and_edges()
    first = [model.convs[0](*args) for model in (ours, theirs)]  # type: ignore[index,operator]
    torch.testing.assert_close(*first)


def test_classes_go_and_come_back() -> None:
    theirs, ours = plain_and_accelerated("sage")
    assert isinstance(ours, pyg.GraphSAGE)
    assert repr(ours) == repr(theirs)
    with named_case("jit"):
        scripted = script(ours)
        torch.testing.assert_close(scripted(*x_and_edges()), theirs(*x_and_edges()))
    assert type(revert(ours)) is pyg.GraphSAGE

    class Mine(pyg.GraphSAGE):  # type: ignore[misc]
        pass

    assert type(accelerate(Mine(WIDTH, 8, 2))) is Mine
