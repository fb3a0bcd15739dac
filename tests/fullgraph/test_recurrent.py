"""Recurrent networks over partitioned rows: results and gradients of all parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from peergraph.fullgraph import PartitionedTensor, RowLayout, distribute
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.named_case import named_case

ROWS = 7
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "LSTM, two layers, both directions": (
        lambda: nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True),
        0,
    ),
    "GRU": (lambda: nn.GRU(3, 4), 1),
    "RNN": (lambda: nn.RNN(3, 4, batch_first=True, nonlinearity="relu"), 0),
    "LSTMCell": (lambda: nn.LSTMCell(3, 4), 0),
    "GRUCell": (lambda: nn.GRUCell(3, 4), 0),
    "RNNCell": (lambda: nn.RNNCell(3, 4), 0),
}


def _flat(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [x for part in result for x in _flat(part)]


def _run(network: nn.Module, x: Tensor) -> list[Tensor]:
    """The results, and the gradients of the input and of all parameters."""
    network.zero_grad()
    x = x.detach().requires_grad_()
    outs = _flat(network(x))
    total = (outs[0] ** 2).sum()
    for out in outs[1:]:
        total = total + (out**3).sum()
    total.backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    return [
        rows.full_tensor() if isinstance(rows, PartitionedTensor) else rows
        for rows in (*outs, x.grad, *gradients)
    ]


def _check() -> None:
    group = Group.current(device="cpu")
    counts = [[7], [3, 4], [5, 0, 2]][group.world_size - 1]
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    layout = RowLayout.from_order(group, order, counts)
    for name, (make, dim) in NETWORKS.items():
        torch.manual_seed(0)
        network = make().double()
        shape = [ROWS, 3] if "Cell" in name else [ROWS, 5, 3]
        x = torch.randn(shape, dtype=torch.float64)
        x = x.transpose(0, dim) if dim else x
        with named_case(name):
            expected = _run(network, x)
            for ours, theirs in zip(
                _run(network, distribute(x, layout, dim)), expected, strict=True
            ):
                torch.testing.assert_close(ours, theirs)
    # DGL's SAGEConv gives nodes of each degree zeros as states; here of one node.
    sequence = torch.randn(1, 5, 3, dtype=torch.float64)
    lstm, one = (
        nn.LSTM(3, 4, batch_first=True).double(),
        RowLayout.from_order(
            group, torch.zeros(1, dtype=torch.int64), [1, 0, 0][: group.world_size]
        ),
    )
    results = []
    for x in (sequence, distribute(sequence, one)):
        state = lstm(x, (x.new_zeros(1, 1, 4), x.new_zeros(1, 1, 4)))[1][0]
        results.append(state.full_tensor() if isinstance(state, PartitionedTensor) else state)
    torch.testing.assert_close(*results)
    steps = distribute(torch.randn(2, ROWS, 3), layout, 1)
    with pytest.raises(NotImplementedError, match="steps of sequences are partitioned"):
        nn.GRU(3, 4, batch_first=True)(steps)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_recurrent_networks(world_size: int) -> None:
    run_ranks(_check, world_size)
