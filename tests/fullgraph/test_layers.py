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


def run(layer: Any, structure: Any, x: Tensor, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the result and all gradients, as plain tensors of all rows."""
    out = layer(structure, x, given)
    weight = features(out.shape[0], tuple(out.shape[1:]), out.device, torch.float64, 9, grad=False)
    if isinstance(out, PartitionedTensor):
        weight = leaf(weight, out.row_layout)
    leaves = {"x": x, **given}
    (out * weight).sum().backward()
    found = {name: full(t.grad) for name, t in leaves.items() if t.grad is not None}
    return {"out": full(out.detach()), **found}


def failures(group: Group, num_edges: int, grouped: bool) -> dict[str, str]:
    """Compares each layer; what failed, by the layer's name."""
    device = group.device
    graph = random_graph(device, NODES, NODES, num_edges)
    nodes = shuffled_layout(group, NODES, num_edges)
    plain = graph.csc()
    partitioned = partition(graph.edge_index, nodes, nodes, grouped=grouped)
    found = {}
    for name, layer in {**LAYERS, **ON_ALL_NODES}.items():
        x = features(NODES, (IN,), device, torch.float64)
        given = parameters(device, torch.float64, num_edges)
        given = {key: value.detach().requires_grad_() for key, value in given.items()}
        expected = run(layer, plain, x, given)
        mine = {
            key: leaf(value, partitioned.edge_layout)
            if key in OF_EDGES
            else value.detach().requires_grad_()
            for key, value in given.items()
        }
        try:
            result = run(layer, partitioned, leaf(x, nodes), mine)
            assert result.keys() == expected.keys(), (result.keys(), expected.keys())
            for key, value in expected.items():
                torch.testing.assert_close(
                    result[key], value, rtol=1e-10, atol=1e-10, msg=lambda m, k=key: f"{k}: {m}"
                )
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def check_layers(num_edges: int, grouped: bool) -> dict[str, str]:
    return failures(Group.current(), num_edges, grouped)


# Numbers of edges, and whether they are grouped by destination.
VARIANTS = [(EDGES, False), (500, True), (0, False)]


def compare_layers(ranks: int, device: str, variants: list[tuple[int, bool]] = VARIANTS) -> None:
    for num_edges, grouped in variants:
        results = run_ranks(check_layers, ranks, num_edges, grouped, device=device)
        for rank, found in enumerate(results):
            lines = "\n".join(f"{name}: {error}" for name, error in found.items())
            assert not found, f"rank {rank}, {num_edges} edges, {len(found)} layers:\n{lines}"


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
            found = []
            for structure in structures:
                x = features(NODES, (IN,), group.device, torch.float32)
                given = parameters(group.device, torch.float32, EDGES)
                given = {key: value.detach().requires_grad_() for key, value in given.items()}
                if structure is structures[1]:
                    x = leaf(x, nodes)
                    edges = structures[1].edge_layout
                    given |= {key: leaf(given[key], edges) for key in OF_EDGES}
                with torch.autocast(group.device.type, torch.bfloat16):
                    found.append(run(LAYERS[name], structure, x, given))
            assert found[0].keys() == found[1].keys()
            for key, value in found[0].items():
                error = (found[1][key].float() - value.float()).abs().max()
                assert found[1][key].dtype == value.dtype
                assert error <= 0.05 * value.abs().max(), key


def test_layers_under_autocast() -> None:
    run_ranks(check_autocast, 2)
