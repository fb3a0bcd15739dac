"""A training step as one CUDA graph: sampling, gathering, PyG's GraphSAGE, gradients, optimiser.

python examples/cuda_graph.py [--device cpu]

Samples of a static shape make it possible: their arrays are as large as bounds say, and what is
behind the counts is padding. On a CPU the same steps run one by one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric.nn import GraphSAGE

import peergraph
from peergraph.sampling import NeighborSampler, StaticShapeSampler, sample_bounds
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Store

NODES, WIDTH, CLASSES, BATCH, STEPS = 2_000, 16, 4, 64, 200


def make_graph() -> GraphSource:
    """Nodes of four communities, which few of the features tell apart."""
    y = torch.randint(CLASSES, (NODES,))
    ends = torch.randint(NODES, (2, 40 * NODES))
    alike = (y[ends[0]] == y[ends[1]]) | (torch.rand(ends.shape[1]) < 0.1)
    x = torch.randn(NODES, WIDTH)
    x[torch.arange(NODES), y] += 0.7
    return GraphSource.homogeneous(NODES, EdgeSource(coo=ends[:, alike]), {"x": x, "y": y})


class Step:
    """One step; it reads the seeds and the random seed from tensors that stay where they are."""

    def __init__(self, store: Store) -> None:
        sampler = NeighborSampler(store, [10, 5])
        tries = [sampler.sample(torch.randint(NODES, (BATCH,)), seed) for seed in range(10)]
        max_nodes, max_edges = sample_bounds(tries, slack=1.3)
        self.sampler = StaticShapeSampler(sampler, BATCH, max_nodes=max_nodes, max_edges=max_edges)
        self.x, self.y = store.node_table("x"), store.node_table("y")
        self.model = GraphSAGE(WIDTH, 32, num_layers=2, out_channels=CLASSES).to(store.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3)
        self.seeds = torch.arange(BATCH, device=store.device)
        self.seed = torch.zeros(1, dtype=torch.int64, device=store.device)
        self.right = torch.zeros((), device=store.device)

    def __call__(self) -> None:
        sample = self.sampler.sample(self.seeds, self.seed)
        out = self.model(
            self.x.gather(sample.nodes[NODE], padded=True),
            sample.edge_index[EDGE],
            num_sampled_nodes_per_hop=sample.shape.rows_per_hop[NODE],
            num_sampled_edges_per_hop=sample.shape.edges_per_hop[EDGE],
        )[:BATCH]
        y = self.y.gather(self.seeds)
        self.optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(out, y).backward()
        self.optimizer.step()
        self.right.copy_((out.argmax(1) == y).float().mean())


def capture(step: Step) -> Callable[[], None]:
    """The step as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # libraries set themselves up, gradients get their memory
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def accuracy(right: list[Tensor]) -> float:
    return float(torch.stack(right).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cuda" if peergraph.num_gpus() else "cpu"
    )
    torch.manual_seed(0)
    with Store.build(make_graph(), device=parser.parse_args().device) as store:
        step = Step(store)
        run = capture(step) if store.device.type == "cuda" else step
        right = []
        for number in range(STEPS):
            step.seeds.copy_(torch.randperm(NODES)[:BATCH])
            step.seed.fill_(number)
            run()
            right.append(step.right.clone())
        peergraph.synchronize(store.device)  # raises if a sample did not fit
        print(f"accuracy of the first ten steps {accuracy(right[:10]):.2f}")
        print(f"accuracy of the last ten steps {accuracy(right[-10:]):.2f}")


if __name__ == "__main__":
    main()
