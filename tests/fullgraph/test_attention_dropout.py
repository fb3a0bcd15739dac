"""Dropout of attention weights is keyed by the user's edge: equal at any number of ranks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate import layers
from peergraph.fullgraph import PartitionedTensor, keyed_random
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.aggregate.graphs import features, random_graph
from tests.aggregate.test_layers import EDGES, IN, NODES, heads, parameters
from tests.fullgraph.gpu_numbers import each_place
from tests.fullgraph.partitioned import leaf, partition, shuffled_layout
from tests.fullgraph.test_layers import full

NAMES = ("att_source", "att_destination")


def run(structure: Any, x: Tensor, operands: dict[str, Tensor]) -> list[Tensor]:
    """The result and the gradients of the features and of the parameters."""
    torch.manual_seed(8)
    with nullcontext() if isinstance(x, PartitionedTensor) else keyed_random():
        out = layers.gat(structure, heads(x), *map(operands.get, NAMES), dropout=0.6)
    leaves = [x, *map(operands.get, NAMES)]
    return [
        full(tensor) for tensor in (out.detach(), *torch.autograd.grad(out.square().sum(), leaves))
    ]


def compare(grouped: bool) -> None:
    group = Group.current(timeout=60)
    graph = random_graph(group.device, NODES, NODES, EDGES)
    nodes = shuffled_layout(group, NODES)
    structure = partition(graph.edge_index, nodes, nodes, grouped=grouped)
    x = features(NODES, (IN,), group.device, torch.float64)
    operands = {
        name: value.detach().requires_grad_()
        for name, value in parameters(group.device, torch.float64, EDGES).items()
    }
    expected = run(graph.csc(), x, operands)
    actual = run(structure, leaf(x, nodes), operands)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@each_place(1, 2, 3)
def test_equal_to_one_process(world_size: int, device_type: str) -> None:
    run_ranks(compare, world_size, world_size == 2, device=device_type)
