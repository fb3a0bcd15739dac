"""Full-graph training of an unmodified PyG model: every epoch sees all nodes, exactly.

    torchrun --nproc-per-node 4 examples/pyg_full_graph.py      # one rank per GPU
    torchrun --nproc-per-node 2 examples/pyg_full_graph.py --device cpu
    python examples/pyg_full_graph.py                           # one process
    python examples/pyg_full_graph.py --memory-budget 1         # features in host memory

The script is the one for a single GPU; the lines that use Peergraph are marked with (1) to (3).
Accuracies are the same on any number of ranks, and with any budget.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE
from torch_geometric.utils import stochastic_blockmodel_graph

import peergraph_pyg  # (1)

MODELS = {"gcn": GCN, "sage": GraphSAGE, "gat": GAT, "gin": GIN}


def make_graph(num_nodes: int = 2000, num_classes: int = 5) -> Data:
    """Communities: most edges stay inside one, features say little about which one it is."""
    torch.manual_seed(0)
    sizes = [num_nodes // num_classes] * num_classes
    inside, between = 30 / sizes[0], 2 / num_nodes
    probabilities = torch.full((num_classes, num_classes), between).fill_diagonal_(inside)
    y = torch.arange(num_classes).repeat_interleave(sizes[0])
    x = F.one_hot(y, num_classes) + 1.5 * torch.randn(len(y), num_classes)
    split = torch.rand(len(y))
    return Data(
        x=x,
        y=y,
        edge_index=stochastic_blockmodel_graph(sizes, probabilities),
        train_mask=split < 0.3,
        val_mask=(split >= 0.3) & (split < 0.6),
        test_mask=split >= 0.6,
    )


def train(model: torch.nn.Module, data: Data, optimizer: torch.optim.Optimizer) -> float:
    """One epoch, a step on all training nodes."""
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test(model: torch.nn.Module, data: Data) -> list[float]:
    """Accuracies of the training, validation and test nodes, with all of their neighbours."""
    model.eval()
    guess = model(data.x, data.edge_index).argmax(dim=-1)
    masks: list[Tensor] = [data.train_mask, data.val_mask, data.test_mask]
    return [int((guess[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="gcn")
    parser.add_argument("--data", help="file of torch.save(data); default: a generated graph")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--memory-budget",
        type=float,
        help="MiB of each rank's device; rows that do not fit stay in host memory; default: all",
    )
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)

    data = torch.load(args.data, weights_only=False) if args.data else make_graph()
    budget = None if args.memory_budget is None else int(args.memory_budget * 2**20)
    data = peergraph_pyg.full_graph(data, budget, device=device)  # (2) each rank keeps its rows

    torch.manual_seed(1)
    model = MODELS[args.model](
        data.num_features,
        args.hidden,
        args.layers,
        int(data.y.max()) + 1,
        dropout=args.dropout,
        norm="batch_norm",
    ).to(device)
    model = peergraph_pyg.accelerate(model)  # (3) Peergraph's kernels
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=5e-4)
    is_first = int(os.environ.get("RANK", 0)) == 0
    for epoch in range(args.epochs):
        loss = train(model, data, optimizer)
        if epoch % 5 == 4:
            train_score, val_score, test_score = test(model, data)
            if is_first:
                print(
                    f"epoch {epoch + 1}: loss {loss:.4f}, train {train_score:.3f}, "
                    f"val {val_score:.3f}, test accuracy {test_score:.3f}"
                )


if __name__ == "__main__":
    main()
