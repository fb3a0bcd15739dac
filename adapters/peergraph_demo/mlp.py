"""An MLP on the nodes' own features: what the graph adds is what GraphSAGE has more."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peergraph_demo.options import Training
from peergraph_demo.result import DemoResult
from peergraph_demo.team import Team, batches

# It has no neighbours to read, so its epochs cost next to nothing.
_EPOCHS_PER_EPOCH = 10
_LAYERS = 3


def train_mlp(
    team: Team, training: Training, data: Any, splits: dict[str, Tensor], result: DemoResult
) -> None:
    """Trains with DDP, ten times as many epochs as GraphSAGE, and fills in the accuracies.

    Collective; arguments as for `train_sage`.
    """
    from torch_geometric.nn import MLP

    torch.manual_seed(training.seed)
    model = MLP(
        in_channels=data.x.size(1),
        hidden_channels=training.hidden,
        out_channels=result.num_classes,
        num_layers=_LAYERS,
        dropout=training.dropout,
        norm="layer_norm",
        norm_kwargs={"mode": "node"},
    ).to(team.device)
    ddp = team.distribute(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=training.lr)
    torch.manual_seed(training.seed + 1 + team.rank)
    share = team.equal_share(splits["train"])
    epochs = _EPOCHS_PER_EPOCH * training.epochs
    with team.bar(epochs, "MLP, no graph", "epochs") as bar:
        for _ in range(epochs):
            ddp.train()
            for nodes in batches(share[torch.randperm(len(share))], training.batch_size):
                x, y = _read(team, data, nodes)
                loss = F.cross_entropy(ddp(x), y)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            bar.update()
    result.mlp_val_accuracy = _accuracy(team, training, model, data, splits["val"])
    result.mlp_test_accuracy = _accuracy(team, training, model, data, splits["test"])


@torch.no_grad()
def _accuracy(team: Team, training: Training, model: nn.Module, data: Any, nodes: Tensor) -> float:
    model.eval()
    correct = torch.zeros((), dtype=torch.int64, device=team.device)
    for part in batches(team.share(nodes), training.batch_size):
        x, y = _read(team, data, part)
        correct += (model(x).argmax(dim=1) == y).sum()
    return team.accuracy(correct, nodes)


def _read(team: Team, data: Any, nodes: Tensor) -> tuple[Tensor, Tensor]:
    nodes = nodes.to(team.device)
    return data.x[nodes].float(), data.y[nodes]
