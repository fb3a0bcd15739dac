"""Steps of PyG's models: PyG's layers and accelerated ones, with and without torch.compile.

    python benchmarks/compiled.py --rounds 30 --device cpu

The four take turns, batch by batch, on the same batches of the same loader, so that other work on
the machine disturbs all alike. A step is forward, loss, backward and Adam. The table has the median
time of a step in milliseconds (`ms`) and, on the CPU, that of the processor time of all threads
(`cpu ms`). Compiling is not timed. Plain PyG models get untrimmed batches, as accelerated ones do.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
from harness.markdown import table
from harness.turns import in_turns
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE

import peergraph_pyg

MODELS = {"GraphSAGE": GraphSAGE, "GCN": GCN, "GIN": GIN, "GAT": GAT}
_WARMUP = 3


def trainer(model: Any, call: Any) -> Callable[[Any], Any]:
    """Returns a step that trains `model` by way of `call` and returns the loss."""
    optimizer = torch.optim.Adam(model.parameters())

    def step(batch: Any) -> Any:
        optimizer.zero_grad()
        out = call(batch.x, batch.edge_index)[: batch.batch_size]
        loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="GraphSAGE,GCN,GAT")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--degree", type=int, default=25)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = Data(
        x=torch.randn(args.nodes, args.width),
        edge_index=torch.randint(args.nodes, (2, args.nodes * args.degree)),
        y=torch.randint(16, (args.nodes,)),
    )
    shared = peergraph_pyg.share(data, device=args.device)
    loader = NeighborLoader(shared, [15, 10], batch_size=args.batch, shuffle=True)
    lines = []
    for name in args.models.split(","):
        torch._dynamo.reset()
        plain = MODELS[name](args.width, 64, 2, 16).to(args.device)
        batches = list(itertools.islice(loader, _WARMUP + args.rounds))
        steps = {}
        for layers in ("PyG", "Peergraph"):
            for is_compiled in (False, True):
                model = copy.deepcopy(plain)
                if layers == "Peergraph":
                    peergraph_pyg.accelerate(model)
                call = torch.compile(model, dynamic=True) if is_compiled else model
                step = trainer(model, call)
                steps[layers, is_compiled] = lambda i, step=step, b=batches: step(b[i])
        for (layers, is_compiled), turns in in_turns(steps, args.rounds, _WARMUP).items():
            times = f"{turns.median:.1f}", f"{turns.median_cpu:.1f}"
            compiled = "yes" if is_compiled else "no"
            lines.append([name, layers, compiled, *times, f"{turns.results[-1]:.4f}"])
    head = ["model", "layers", "compiled", "ms", "cpu ms", "last loss"]
    print("\n".join(table(head, lines, texts=3)))


if __name__ == "__main__":
    main()
