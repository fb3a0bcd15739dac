"""Shares of nodes, the phase clock and the summary."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from peergraph.testing import run_ranks
from peergraph_demo.clock import PhaseClock
from peergraph_demo.report import summary
from peergraph_demo.result import DemoResult, Epoch
from peergraph_demo.team import Team, batches


class SlowLoader:
    """A loader as PyG's: it samples, then applies its `filter_fn`."""

    def __iter__(self) -> Any:
        for i in range(3):
            time.sleep(0.02)
            yield self.filter_fn(i)

    def filter_fn(self, sampled: int) -> int:
        time.sleep(0.04)
        return sampled * 10


def test_clock_tells_phases_apart() -> None:
    clock = PhaseClock(SlowLoader(), torch.device("cpu"))  # type: ignore[arg-type]
    for _ in range(2):
        seen = []
        for batch in clock.batches():
            time.sleep(0.06)
            seen.append(batch)
        assert seen == [0, 10, 20]
        # Lower bounds only: sleeping takes at least as long as asked.
        assert clock.seconds["sampling"] >= 0.06
        assert clock.seconds["gathering"] >= 0.12
        assert clock.seconds["training"] >= 0.18


def team_results() -> tuple[Any, ...]:
    team = Team(torch.device("cpu"))
    nodes = torch.arange(10, 15)
    share = team.share(nodes)
    return (
        team.equal_share(nodes).tolist(),
        team.equal_share(nodes[:1]).tolist(),
        share.tolist(),
        team.mean([float(team.rank), 4.0]),
        team.accuracy((share < 13).sum(), nodes),
    )


def test_shares_and_sums_over_ranks() -> None:
    first, second = run_ranks(team_results, 2, timeout_s=120)
    assert first == ([10, 12, 14], [10], [10, 12, 14], [0.5, 4.0], 0.6)
    assert second == ([11, 13, 10], [10], [11, 13], [0.5, 4.0], 0.6)


def test_batches() -> None:
    assert [b.tolist() for b in batches(torch.arange(5), 2)] == [[0, 1], [2, 3], [4]]
    assert list(batches(torch.arange(0), 2)) == []


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_summary(device: str) -> None:
    result = DemoResult(
        graph="toy", num_nodes=1234, num_edges=5678, num_classes=3, device=device, ranks=2, plan={}
    )
    result.epochs = [Epoch(1.5, 0.5, 8.0, 1.0, 2.0, 4.0)] * 2
    result.epochs += [Epoch(1.5, 0.5, 9.0, 1.25, 2.5, 5.0)] * 2
    result.val_accuracy, result.test_accuracy = 0.5, 0.625
    result.mlp_val_accuracy, result.mlp_test_accuracy = 0.25, 0.375
    rows = [line.split() for line in summary(result).splitlines()]
    assert ["GraphSAGE", "0.5000", "0.6250"] in rows
    assert ["MLP,", "no", "graph", "0.2500", "0.3750"] in rows
    assert ["epoch", "2", "8.00", "1.00", "2.00", "4.00"] in rows
    assert ["epoch", "4", "9.00", "1.25", "2.50", "5.00"] in rows
    assert not any(row[:2] == ["epoch", "1"] for row in rows)
    assert "1,234 nodes, 5,678 edges" in summary(result)
    assert ("waits for the GPU" in summary(result)) == (device == "cuda")
