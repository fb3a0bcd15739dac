"""A small network on partitioned tensors computes what it computes on plain ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.fullgraph import RowLayout, distribute
from peergraph.memory import Group
from tests.fullgraph.gpu_numbers import each_place
from tests.fullgraph.partitioned_cases import Inputs, check_cases


def network(i: Inputs) -> list[Tensor]:
    hidden = F.linear(i.x, i.w.t(), i.b[:4]).relu()
    heads = hidden.view(-1, 2, 2) * i.h[:, :, :2]
    hidden = heads.reshape(-1, 4)
    selected = hidden[i.mask] - i.x[i.mask][:, :4]
    return [hidden / (hidden.sum(0) + 20), selected, hidden.mean(), hidden[i.ids], hidden[2:7]]


CASES = {"network": network}


@each_place(1, 2, 3)
def test_network(world_size: int, device_type: str) -> None:
    check_cases(__name__, world_size, device_type)


def test_views_in_inference_mode_can_be_used_outside() -> None:
    layout = RowLayout.from_order(Group.current("cpu"), torch.arange(6), [6])
    x = distribute(torch.arange(12.0).view(6, 2), layout)
    with torch.inference_mode():
        column, transposed, doubled = x[:, 1], x.t(), x * 2
    assert doubled.is_inference()
    assert not column.is_inference()
    weight = torch.ones(2, requires_grad=True)
    (column.sum() * (transposed.t() @ weight).sum()).backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [36 * 30, 36 * 36]
