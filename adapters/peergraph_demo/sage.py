"""GraphSAGE on batches of an unmodified PyG NeighborLoader."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peergraph_demo.clock import PhaseClock
from peergraph_demo.options import Training
from peergraph_demo.result import DemoResult, Epoch
from peergraph_demo.team import Team


def train_sage(
    team: Team, training: Training, data: Any, splits: dict[str, Tensor], result: DemoResult
) -> None:
    """Trains with DDP and fills in the result's epochs and accuracies. Collective.

    Args:
        data: what `peergraph_pyg.share` returned, with `x` and `y`.
        splits: node ids of "train", "val" and "test", the same on all ranks.
    """
    from torch_geometric.nn import GraphSAGE

    torch.manual_seed(training.seed)
    model = GraphSAGE(
        data.x.size(1),
        training.hidden,
        num_layers=len(training.fanouts),
        out_channels=result.num_classes,
        dropout=training.dropout,
        norm="layer_norm",
        norm_kwargs={"mode": "node"},
    ).to(team.device)
    ddp = team.distribute(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=training.lr)
    # From here on ranks draw different neighbours and dropout masks.
    torch.manual_seed(training.seed + 1 + team.rank)
    loader = _loader(training, data, team.equal_share(splits["train"]), shuffle=True)
    clock = PhaseClock(loader, team.device)
    for epoch in range(training.epochs):
        clock.synchronise = epoch == training.epochs - 1
        what = f"epoch {epoch + 1}/{training.epochs}"
        start = perf_counter()
        loss = _train_epoch(team, ddp, optimizer, clock, len(loader), what)
        seconds = [perf_counter() - start, *clock.seconds.values()]
        accuracy = _accuracy(team, training, model, data, splits["val"])
        result.epochs.append(Epoch(loss, accuracy, *team.mean(seconds)))
        team.say(f"{what}: loss {loss:.4f}, validation accuracy {accuracy:.4f}")
    result.val_accuracy = result.epochs[-1].val_accuracy
    result.test_accuracy = _accuracy(team, training, model, data, splits["test"])
    team.say(f"test accuracy {result.test_accuracy:.4f}")


def _train_epoch(
    team: Team,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    clock: PhaseClock,
    steps: int,
    what: str,
) -> float:
    model.train()
    total = torch.zeros((), device=team.device)
    with team.bar(steps, what, "batches") as bar:
        for batch in clock.batches():
            batch = batch.to(team.device)
            loss = F.cross_entropy(_logits(model, batch), batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.detach()
            bar.update()
    return team.mean([float(total) / steps])[0]


@torch.no_grad()
def _accuracy(team: Team, training: Training, model: nn.Module, data: Any, nodes: Tensor) -> float:
    model.eval()
    correct = torch.zeros((), dtype=torch.int64, device=team.device)
    share = team.share(nodes)
    for batch in _loader(training, data, share, shuffle=False) if len(share) else ():
        batch = batch.to(team.device)
        guess = _logits(model, batch).argmax(dim=1)
        correct += (guess == batch.y[: batch.batch_size]).sum()
    return team.accuracy(correct, nodes)


def _loader(training: Training, data: Any, nodes: Tensor, *, shuffle: bool) -> Any:
    from torch_geometric.loader import NeighborLoader

    return NeighborLoader(
        data,
        num_neighbors=training.fanouts,
        input_nodes=nodes,
        batch_size=training.batch_size,
        shuffle=shuffle,
        num_workers=training.num_workers,
    )


def _logits(model: nn.Module, batch: Any) -> Tensor:
    """Logits of the seeds. Each layer is computed only for the nodes that later ones need."""
    out: Tensor = model(
        batch.x.float(),
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )
    return out[: batch.batch_size]
