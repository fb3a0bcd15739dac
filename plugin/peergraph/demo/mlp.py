"""An MLP on the nodes' own features: what the graph adds is what GraphSAGE has more."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .options import DemoOptions
from .result import DemoResult
from .team import Team, batches

# It has no neighbours to read, so its epochs cost next to nothing.
_EPOCHS_PER_EPOCH = 10
_LAYERS = 3


def train_mlp(
    team: Team, options: DemoOptions, data: Any, splits: dict[str, Tensor], result: DemoResult
) -> None:
    """Trains with DDP, ten times as many epochs as GraphSAGE, and fills in the accuracies.

    Collective; arguments as for `train_sage`.
    """
    from torch_geometric.nn import MLP

    torch.manual_seed(options.seed)
    model = MLP(
        in_channels=data.x.size(1),
        hidden_channels=options.hidden,
        out_channels=result.num_classes,
        num_layers=_LAYERS,
        dropout=options.dropout,
    ).to(team.device)
    ddp = team.distribute(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=options.lr)
    torch.manual_seed(options.seed + 1 + team.rank)
    share = team.equal_share(splits["train"])
    epochs = _EPOCHS_PER_EPOCH * options.epochs
    with team.bar(epochs, "MLP, no graph", "epochs") as bar:
        for _ in range(epochs):
            ddp.train()
            for nodes in batches(share[torch.randperm(len(share))], options.batch_size):
                x, y = _read(team, data, nodes)
                loss = F.cross_entropy(ddp(x), y)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            bar.update()
    result.mlp_val_accuracy = _accuracy(team, options, model, data, splits["val"])
    result.mlp_test_accuracy = _accuracy(team, options, model, data, splits["test"])


@torch.no_grad()
def _accuracy(
    team: Team, options: DemoOptions, model: nn.Module, data: Any, nodes: Tensor
) -> float:
    model.eval()
    correct = torch.zeros((), dtype=torch.int64, device=team.device)
    for part in batches(team.share(nodes), options.batch_size):
        x, y = _read(team, data, part)
        correct += (model(x).argmax(dim=1) == y).sum()
    return team.accuracy(correct, nodes)


def _read(team: Team, data: Any, nodes: Tensor) -> tuple[Tensor, Tensor]:
    nodes = nodes.to(team.device)
    return data.x[nodes].float(), data.y[nodes]
