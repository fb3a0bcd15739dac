"""PyG's modules without edges, unchanged, on partitioned tensors: equal to one process."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peergraph.fullgraph import PartitionedTensor, keyed_random
from tests.fullgraph.gpu_numbers import each_place
from tests.fullgraph.partitioned_cases import Case, Inputs, check_cases
from tests.fullgraph.test_norms import prepared

pyg = pytest.importorskip("torch_geometric.nn")


def gradients(i: Inputs, module: nn.Module, *outs: Tensor) -> list[Tensor]:
    """The results, the parameters' gradients and the buffers."""
    loss = sum((out * out.detach().cos()).sum() for out in outs)
    parameters = [p for p in module.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss, parameters, retain_graph=True) if parameters else ()
    return [*outs, *grads, *map(torch.clone, module.buffers())]


def numbers(i: Inputs) -> Any:
    """The random numbers of partitioned tensors, for plain ones too."""
    torch.manual_seed(6)
    return nullcontext() if isinstance(i.x, PartitionedTensor) else keyed_random()


def jumping_knowledge(mode: str) -> Case:
    def run(i: Inputs) -> list[Tensor]:
        module = prepared(pyg.JumpingKnowledge(mode, channels=6, num_layers=3)).to(i.b.device)
        return gradients(i, module, module([i.x, i.y, i.x * i.y]))

    return run


class Dense(nn.Linear):
    """A convolution without neighbours."""

    def forward(self, x: Tensor, edge_index: None = None) -> Tensor:
        return super().forward(x)


def deep_layer(block: str, ckpt_grad: bool) -> Case:
    def run(i: Inputs) -> list[Tensor]:
        module = pyg.DeepGCNLayer(
            *(Dense(6, 6), nn.LayerNorm(6), nn.ReLU()),
            block=block,
            dropout=0.3,
            ckpt_grad=ckpt_grad,
        )
        module = prepared(module).to(i.b.device)
        with numbers(i):
            out = module(module(i.x, None), None)
            out.square().sum().backward()
        return [out.detach(), *(parameter.grad for parameter in module.parameters())]

    return run


def mlp(**options: Any) -> Case:
    def run(i: Inputs) -> list[Tensor]:
        module = prepared(pyg.MLP([6, 8, 8, 4], dropout=0.4, **options)).to(i.b.device)
        with numbers(i):
            outs = [module(i.x), module(i.y)]
        module.eval()
        return gradients(i, module, *outs, module(i.x))

    return run


def embeddings(i: Inputs) -> list[Tensor]:
    """A table read by partitioned ids."""
    module = prepared(nn.Embedding(6, 3)).to(i.b.device)
    return gradients(i, module, module(i.labels), F.one_hot(i.labels, 6).double() @ i.w)


CASES: dict[str, Case] = {
    **{f"JumpingKnowledge {mode}": jumping_knowledge(mode) for mode in ("cat", "max", "lstm")},
    **{
        f"DeepGCNLayer {block}{' with checkpoint' * ckpt}": deep_layer(block, ckpt)
        for block in ("res+", "res", "plain")
        for ckpt in (False, True)
    },
    "MLP": mlp(),
    "MLP with LayerNorm": mlp(norm="layer_norm", act_first=True),
    "MLP with InstanceNorm": mlp(norm="instance_norm"),
    "MLP with GraphNorm": mlp(norm="graph_norm", act="elu", plain_last=False),
    "embeddings": embeddings,
}


@each_place(1, 2, 3)
def test_equal_to_one_process(world_size: int, device_type: str) -> None:
    check_cases(__name__, world_size, device_type)
