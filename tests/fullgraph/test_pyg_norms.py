"""PyG's normalisation layers, unchanged, on partitioned tensors: equal to one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from peergraph.fullgraph import like
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from tests.fullgraph.gpu_numbers import each_place
from tests.fullgraph.partitioned_cases import Case, Inputs, check_cases
from tests.fullgraph.test_norms import norm, prepared

pyg = pytest.importorskip("torch_geometric.nn")


def batch_of(i: Inputs) -> Tensor:
    """Three graphs of five, no and eight nodes, partitioned as the nodes are."""
    batch = torch.tensor([0] * 5 + [2] * 8, device=i.x.device)
    return like(i.x, batch) if isinstance(i.x, PartitionedTensor) else batch


def with_batch(module: nn.Module, batch_size: int | None = 3) -> Case:
    """Training, then evaluation; with the parameters' gradients and the buffers."""

    def run(i: Inputs) -> Any:
        layer, batch = prepared(module).to(i.b.device), batch_of(i)
        out = layer(i.x, batch, batch_size)
        parameters = list(layer.parameters())
        loss = (out * out.detach().cos()).sum()
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True) if parameters else ()
        layer.eval()
        return [out, layer(i.x, batch, batch_size), *gradients, *map(torch.clone, layer.buffers())]

    return run


def message_norm(i: Inputs) -> Tensor:
    layer = prepared(pyg.MessageNorm(learn_scale=True)).to(i.b.device)
    return layer(i.x, i.y)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm": lambda: pyg.BatchNorm(6),
    "BatchNorm of single elements": lambda: pyg.BatchNorm(6, allow_single_element=True),
    "LayerNorm by graph": lambda: pyg.LayerNorm(6),
    "LayerNorm by node": lambda: pyg.LayerNorm(6, mode="node"),
    "LayerNorm without parameters": lambda: pyg.LayerNorm(6, affine=False),
    "GraphNorm": lambda: pyg.GraphNorm(6),
    "PairNorm": lambda: pyg.PairNorm(),
    "PairNorm of rows": lambda: pyg.PairNorm(scale_individually=True),
    "InstanceNorm": lambda: pyg.InstanceNorm(6),
    "InstanceNorm with running statistics": lambda: pyg.InstanceNorm(
        6, affine=True, track_running_stats=True
    ),
    "MeanSubtractionNorm": lambda: pyg.MeanSubtractionNorm(),
    "GraphSizeNorm": lambda: pyg.GraphSizeNorm(),
    "DiffGroupNorm": lambda: pyg.DiffGroupNorm(6, groups=3),
}
BATCHED = (
    *("LayerNorm by graph", "GraphNorm", "PairNorm", "PairNorm of rows", "InstanceNorm"),
    *("InstanceNorm with running statistics", "MeanSubtractionNorm"),
)
CASES: dict[str, Case] = {
    **{name: norm(make()) for name, make in MODULES.items()},
    **{f"{name} by batch": with_batch(MODULES[name]()) for name in BATCHED},
    "GraphNorm by batch of unknown size": with_batch(pyg.GraphNorm(6), None),
    "GraphSizeNorm by batch": with_batch(pyg.GraphSizeNorm()),
    "MessageNorm": message_norm,
}


@each_place(1, 2, 3)
def test_equal_to_one_process(world_size: int, device_type: str) -> None:
    check_cases(__name__, world_size, device_type)
