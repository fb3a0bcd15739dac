"""What torch and PyG do with layers besides calling them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from tests.named_case import named_cases

from .layer_cases import NAMES, arguments, assert_same, edge_inputs, edges, pair, x_and_edges


def replica(module: Any) -> Any:
    """As DataParallel makes them: tensors in place of parameters."""
    copied = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        copied._modules[name] = None if child is None else replica(child)
    for name, parameter in module._parameters.items():
        if parameter is None:
            copied._parameters[name] = None
        else:
            setattr(copied, name, parameter.view_as(parameter))
    return copied


@named_cases("name", NAMES)
def test_replicas(name: str) -> None:
    theirs, ours = pair(name, *arguments(name))
    inputs = (*x_and_edges(), *edge_inputs(name, 40))
    actual, expected = replica(ours)(*inputs), theirs(*inputs)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    parameters = list(ours.parameters()), list(theirs.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(actual.square().sum(), parameters[0]),
        torch.autograd.grad(expected.square().sum(), parameters[1]),
        rtol=1e-4,
        atol=1e-4,
    )


@named_cases("name", NAMES)
def test_copies_and_checkpoints(name: str) -> None:
    theirs, ours = pair(name, *arguments(name))
    inputs = (*x_and_edges(), *edge_inputs(name, 40))
    expected = theirs(*inputs)
    calls: list[Any] = [copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))]
    calls += [lambda *args: checkpoint(ours, *args, use_reentrant=False)]
    for call in calls:
        torch.testing.assert_close(call(*inputs), expected, rtol=1e-5, atol=1e-5)


@named_cases("name", [name for name in NAMES if not name.endswith("RGCNConv")])
def test_traces_by_make_fx(name: str) -> None:
    theirs, ours = pair(name, *arguments(name))
    x, *inputs = *x_and_edges(), *edge_inputs(name, 40)
    inputs = [value.detach() for value in inputs]

    def run(x: Tensor) -> Tensor:
        out: Tensor = ours(x, *inputs)
        return out

    traced = make_fx(run)(x)
    torch.testing.assert_close(traced(x + 1), theirs(x + 1, *inputs), rtol=1e-5, atol=1e-5)


@named_cases("name", ["GATConv", "GATv2Conv", "SAGEConv", "GraphConv"])
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_gradients_over_sparse_matrices(name: str, layout: str) -> None:
    theirs, ours = pair(name, *arguments(name))
    dense = torch.zeros(9, 9)
    dense[edges()[1], edges()[0]] = 1
    matrix = dense.to_sparse_coo() if layout == "coo" else dense.to_sparse_csr()
    x = x_and_edges()[0].requires_grad_()
    actual, expected = ours(x, matrix), theirs(x, matrix)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(out.square().sum(), x) for out in (actual, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_types_of_no_relation_are_pygs_to_report() -> None:
    theirs, ours = pair("RGCNConv", *arguments("RGCNConv"))
    (edge_type,) = edge_inputs("RGCNConv", 40)
    for layer in (theirs, ours):
        with pytest.raises(RuntimeError, match="out of bounds"):
            layer(*x_and_edges(), edge_type + 3)


@named_cases("name", NAMES)
def test_messages_the_other_way(name: str) -> None:
    theirs, ours = pair(name, *arguments(name), flow="target_to_source")
    inputs = (*x_and_edges(), *edge_inputs(name, 40))
    assert_same(theirs, ours, *inputs)
    plain = pair(name, *arguments(name))[1]
    turned = plain(inputs[0], inputs[1].flip(0), *inputs[2:])
    torch.testing.assert_close(ours(*inputs), turned, rtol=1e-5, atol=1e-5)
    if name not in ("GCNConv", "FastRGCNConv", "RGCNConv", "GatedGraphConv"):
        x = inputs[0]
        assert_same(theirs, ours, (x, x + 1), *inputs[1:])


@named_cases("name", NAMES)
def test_hooks_of_the_aggregation(name: str) -> None:
    theirs, ours = pair(name, *arguments(name))
    inputs = (*x_and_edges(), *edge_inputs(name, 40))

    def hooked_modules(layer: Any) -> list[str]:
        calls: list[str] = []
        for part, module in layer.named_modules():
            module.register_full_backward_hook(lambda *_, part=part: calls.append(part))
        layer(inputs[0].clone().requires_grad_(), *inputs[1:]).sum().backward()
        return sorted(calls)

    assert hooked_modules(ours) == hooked_modules(theirs)


@named_cases("name", NAMES)
def test_hooks_of_all_modules(name: str) -> None:
    theirs, ours = pair(name, *arguments(name))
    inputs = (*x_and_edges(), *edge_inputs(name, 40))
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, out: out * 1.5 if isinstance(out, Tensor) else None
    )
    try:
        actual, expected = ours(*inputs), theirs(*inputs)
    finally:
        hook.remove()
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@named_cases("name", NAMES)
def test_torch_without_a_function_that_finds_such_hooks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch 2.4 is."""
    monkeypatch.delattr(torch.nn.modules.module, "_has_any_global_hook", raising=False)
    theirs, ours = pair(name, *arguments(name))
    inputs = (*x_and_edges(), *edge_inputs(name, 40))
    torch.testing.assert_close(ours(*inputs), theirs(*inputs), rtol=1e-5, atol=1e-5)


WITH_SELF_LOOPS = [name for name in NAMES if name.startswith(("GCN", "GAT"))]


@named_cases(
    ("name", "options", "count"),
    [(name, {}, (20, 200)[i % 2]) for i, name in enumerate(NAMES)]
    + [(name, {"add_self_loops": False}, count) for name in WITH_SELF_LOOPS for count in (20, 200)],
)
def test_training_after_inference(name: str, options: dict[str, Any], count: int) -> None:
    theirs, ours = pair(name, *arguments(name), **options)
    inputs = [x_and_edges()[0], edges(count=count)]
    if name in ("GINEConv", "FastRGCNConv", "RGCNConv"):
        inputs += edge_inputs(name, count)
    with torch.inference_mode():
        ours(*inputs)
    for _ in range(6):  # Until gradients run over a transpose.
        assert_same(theirs, ours, *inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_degrees_that_half_precision_cannot_count(dtype: torch.dtype) -> None:
    count = 70_000
    edge_index = torch.stack([torch.arange(count) % 7 + 1, torch.zeros(count, dtype=torch.int64)])
    layer = pair("GCNConv", *arguments("GCNConv"))[1]
    x = torch.rand(9, 6) + 1
    expected = layer(x, edge_index)
    actual = layer.to(dtype)(x.to(dtype), edge_index)
    torch.testing.assert_close(actual.float(), expected, rtol=3e-2, atol=3e-2)
