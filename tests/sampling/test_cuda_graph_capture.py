"""A CUDA graph that holds a whole training step: sampling, gathering, GraphSAGE, its gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

import peergraph
from peergraph.aggregate import Csc, g_spmm
from peergraph.sampling import (
    NeighborSampler,
    StaticShapeSample,
    StaticShapeSampler,
    exclude_edges,
    sample_bounds,
)
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Store
from tests.sampling.static_shape_samples import assert_padded, assert_same_sample

NODES, WIDTH, CLASSES, BATCH = 500, 12, 5, 20


@pytest.fixture
def store(device: torch.device) -> Iterator[Store]:
    if device.type != "cuda":
        pytest.skip("CUDA graphs are for GPUs")
    rng = np.random.default_rng(0)
    edges = torch.from_numpy(rng.integers(0, NODES, (2, 6000)))
    source = GraphSource(
        {NODE: NODES},
        {EDGE: EdgeSource(coo=edges)},
        {
            NODE: {
                "x": torch.from_numpy(rng.standard_normal((NODES, WIDTH), np.float32)),
                "y": torch.from_numpy(rng.integers(0, CLASSES, NODES)),
            }
        },
        {},
    )
    with Store.build(source, plan="replicated", device=device) as built:
        yield built


class Sage(torch.nn.Module):
    """Two layers on CSC blocks: the hop nearest to the seeds is the last layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [torch.nn.Linear(2 * WIDTH, WIDTH), torch.nn.Linear(2 * WIDTH, CLASSES)]
        )

    def forward(self, x: Tensor, sample: StaticShapeSample) -> Tensor:
        rows = sample.shape.row_offsets(NODE)
        for layer, hop in zip(self.layers, (1, 0), strict=True):
            # What the layers behind will read: the rows of the hops before.
            means = [
                g_spmm(Csc.from_block(sample.block(h), x.shape[0]), "copy_u", "mean", x)
                for h in range(hop + 1)
            ]
            x = layer(torch.cat([x[: rows[hop + 1]], torch.cat(means)], 1))
            x = x.relu() if hop else x
        return x[:BATCH]


class Step:
    """One step of training by a fixed sampler, from tensors that stay where they are."""

    def __init__(self, store: Store, fixed: StaticShapeSampler, device: torch.device) -> None:
        torch.manual_seed(0)
        self.model = Sage().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.store, self.fixed = store, fixed
        self.seeds = torch.zeros(BATCH, dtype=torch.int64, device=device)
        self.count = torch.full((1,), BATCH, device=device)
        self.seed = torch.zeros(1, dtype=torch.int64, device=device)

    def run(self) -> tuple[StaticShapeSample, Tensor]:
        sample = self.fixed.sample(self.seeds, self.seed, num_seeds=self.count)
        nodes = sample.nodes[NODE]
        x = self.store.node_table("x").gather(nodes, padded=True)
        y = self.store.node_table("y").gather(nodes[:BATCH], padded=True)
        out = self.model(x, sample)
        loss = torch.nn.functional.cross_entropy(out, y, reduction="none")
        loss = (loss * (nodes[:BATCH] >= 0)).sum() / self.count[0]
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()
        return sample, loss

    def set(self, seeds: Tensor, count: int, seed: int) -> None:
        self.seeds.copy_(seeds)
        self.count.fill_(count)
        self.seed.fill_(seed)


def warm_up(step: Step) -> None:
    """In a side stream, as torch asks for before a capture; leaves the parameters as they were."""
    before = [p.detach().clone() for p in step.model.parameters()]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step.run()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.no_grad():
        for parameter, value in zip(step.model.parameters(), before, strict=True):
            parameter.copy_(value)


def test_a_captured_step_is_the_step(store: Store, device: torch.device) -> None:
    sampler = NeighborSampler(store, [4, 6])
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randint(NODES, (BATCH,), generator=generator) for _ in range(5)]
    bounds = sample_bounds([sampler.sample(b, i) for i, b in enumerate(batches)], 1.3)
    graphed, eager = (
        Step(
            store,
            StaticShapeSampler(sampler, BATCH, max_nodes=bounds[0], max_edges=bounds[1]),
            device,
        )
        for _ in range(2)
    )
    warm_up(graphed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sample, loss = graphed.run()
    for i, seeds in enumerate(batches):
        count = BATCH - 3 * i
        for step in (graphed, eager):
            step.set(seeds, count, i)
        graph.replay()
        peergraph.synchronize(device)
        assert_padded(sample)
        assert_same_sample(sample.compact(), sampler.sample(seeds[:count], i))
        torch.testing.assert_close(loss, eager.run()[1])
        for mine, other in zip(graphed.model.parameters(), eager.model.parameters(), strict=True):
            torch.testing.assert_close(mine, other)


def test_a_graph_reports_errors(store: Store, device: torch.device) -> None:
    step = Step(
        store, StaticShapeSampler(NeighborSampler(store, [4, 6]), BATCH, max_nodes=[80, 10]), device
    )
    step.set(torch.zeros(BATCH, dtype=torch.int64), 0, 0)
    warm_up(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    step.set(torch.arange(BATCH), BATCH, 0)
    graph.replay()
    with pytest.raises(OverflowError, match="max_nodes: hop 1"):
        peergraph.synchronize(device)
    step.set(torch.full((BATCH,), NODES), 1, 0)
    graph.replay()
    with pytest.raises(IndexError, match=rf"seeds\[0\] = {NODES} is out of range"):
        peergraph.synchronize(device)


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("frontier", ["new", "all"])
def test_kinds_can_be_captured(
    store: Store, device: torch.device, frontier: str, disjoint: bool
) -> None:
    options = {"replace": True} if disjoint else {}
    sampler = NeighborSampler(
        store, [3, 40, -1], frontier=frontier, disjoint=disjoint, duplicate_counts=True, **options
    )
    fixed = StaticShapeSampler(sampler, 8, max_edges=[40, 20_000, 200_000])
    seeds = torch.arange(8, device=device)
    seed = torch.zeros((), dtype=torch.int64, device=device)
    gone = torch.arange(900, device=device)
    fixed.sample(seeds, seed, exclude={EDGE: gone})
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sample = fixed.sample(seeds, seed)
        rest = fixed.sample(seeds, seed, exclude={EDGE: gone})
    for i in range(3):
        seeds.add_(7 * i)
        seed.fill_(i)
        gone.add_(500 * i)
        graph.replay()
        peergraph.synchronize(device)
        expected = sampler.sample(seeds, i)
        assert_same_sample(sample.compact(), expected)
        assert_same_sample(rest.compact(), exclude_edges(expected, gone))
