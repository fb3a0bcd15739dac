"""The layers on a partitioned structure equal the same layers on a plain one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.aggregate.graphs import features, random_graph
from tests.aggregate.test_layers import EDGES, IN, LAYERS, NODES, ON_ALL_NODES, parameters
from tests.named_case import named_case

from .gpu_numbers import GPU_NUMBERS
from .partitioned import leaf, partition, shuffled_layout

OF_EDGES = {"edge_weight", "edge_features", "edge_scores", "coefficients"}


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, PartitionedTensor) else tensor


def run(layer: Any, structure: Any, x: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the result and all gradients, as plain tensors of all rows."""
    out = layer(structure, x, inputs)
    weight = features(out.shape[0], tuple(out.shape[1:]), out.device, torch.float64, 9, grad=False)
    if isinstance(out, PartitionedTensor):
        weight = leaf(weight, out.row_layout)
    leaves = {"x": x, **inputs}
    (out * weight).sum().backward()
    grads = {name: full(t.grad) for name, t in leaves.items() if t.grad is not None}
    return {"out": full(out.detach()), **grads}


def failures(group: Group, num_edges: int, grouped: bool) -> dict[str, str]:
    """Compares each layer; what failed, by the layer's name."""
    device = group.device
    graph = random_graph(device, NODES, NODES, num_edges)
    nodes = shuffled_layout(group, NODES, num_edges)
    plain = graph.csc()
    partitioned = partition(graph.edge_index, nodes, nodes, grouped=grouped)
    failed = {}
    for name, layer in {**LAYERS, **ON_ALL_NODES}.items():
        x = features(NODES, (IN,), device, torch.float64)
        inputs = parameters(device, torch.float64, num_edges)
        inputs = {key: value.detach().requires_grad_() for key, value in inputs.items()}
        expected = run(layer, plain, x, inputs)
        mine = {
            key: leaf(value, partitioned.edge_layout)
            if key in OF_EDGES
            else value.detach().requires_grad_()
            for key, value in inputs.items()
        }
        try:
            result = run(layer, partitioned, leaf(x, nodes), mine)
            assert result.keys() == expected.keys(), (result.keys(), expected.keys())
            for key, value in expected.items():
                torch.testing.assert_close(
                    result[key], value, rtol=1e-10, atol=1e-10, msg=lambda m, k=key: f"{k}: {m}"
                )
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


def check_layers(num_edges: int, grouped: bool) -> dict[str, str]:
    return failures(Group.current(), num_edges, grouped)


# Numbers of edges, and whether they are grouped by destination.
VARIANTS = [(EDGES, False), (500, True), (0, False)]


def compare_layers(ranks: int, device: str, variants: list[tuple[int, bool]] = VARIANTS) -> None:
    for num_edges, grouped in variants:
        results = run_ranks(check_layers, ranks, num_edges, grouped, device=device)
        for rank, failed in enumerate(results):
            lines = "\n".join(f"{name}: {error}" for name, error in failed.items())
            assert not failed, f"rank {rank}, {num_edges} edges, {len(failed)} layers:\n{lines}"


@pytest.mark.parametrize(
    ("ranks", "variants"), [(1, VARIANTS[:1]), (2, VARIANTS[1:2]), (3, VARIANTS[::2])]
)
def test_layers_equal_those_on_a_plain_structure(
    ranks: int, variants: list[tuple[int, bool]]
) -> None:
    compare_layers(ranks, "cpu", variants)


@pytest.mark.parametrize("ranks", GPU_NUMBERS)
def test_layers_on_gpus(ranks: int) -> None:
    compare_layers(ranks, "cuda")


def check_autocast() -> None:
    """Results and gradients under autocast, up to the rounding of bfloat16."""
    group = Group.current()
    graph = random_graph(group.device, NODES, NODES, EDGES)
    nodes = shuffled_layout(group, NODES)
    structures = graph.csc(), partition(graph.edge_index, nodes, nodes)
    for name in ("sage", "sage with max", "gcn", "gcn with edge weights", "gin", "rgcn", "gat"):
        with named_case(name):
            results = []
            for structure in structures:
                x = features(NODES, (IN,), group.device, torch.float32)
                inputs = parameters(group.device, torch.float32, EDGES)
                inputs = {key: value.detach().requires_grad_() for key, value in inputs.items()}
                if structure is structures[1]:
                    x = leaf(x, nodes)
                    edges = structures[1].edge_layout
                    inputs |= {key: leaf(inputs[key], edges) for key in OF_EDGES}
                with torch.autocast(group.device.type, torch.bfloat16):
                    results.append(run(LAYERS[name], structure, x, inputs))
            assert results[0].keys() == results[1].keys()
            for key, value in results[0].items():
                error = (results[1][key].float() - value.float()).abs().max()
                assert results[1][key].dtype == value.dtype
                assert error <= 0.05 * value.abs().max(), key


def test_layers_under_autocast() -> None:
    run_ranks(check_autocast, 2)
