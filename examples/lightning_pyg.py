"""A Lightning module with PyG's NeighborLoader, on a graph that all processes of the Trainer share.

    python examples/lightning_pyg.py                       # a process per GPU, or two on the CPU
    torchrun --nproc-per-node 2 examples/lightning_pyg.py

`setup` is the place of `share`: Lightning calls it in every process, after they have found each
other. The lines that use Peergraph are marked with (1), (2) and (3).
"""

from __future__ import annotations

import argparse
import os

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE
from torch_geometric.utils import stochastic_blockmodel_graph

import peergraph_pyg  # (1)


def make_graph(num_nodes: int = 2000, num_classes: int = 5) -> Data:
    """Communities: most edges stay inside one, features say little about which one it is."""
    torch.manual_seed(0)
    sizes = [num_nodes // num_classes] * num_classes
    inside, between = 30 / sizes[0], 2 / num_nodes
    probabilities = torch.full((num_classes, num_classes), between).fill_diagonal_(inside)
    y = torch.arange(num_classes).repeat_interleave(sizes[0])
    x = F.one_hot(y, num_classes) + 1.5 * torch.randn(len(y), num_classes)
    edge_index = stochastic_blockmodel_graph(sizes, probabilities)
    return Data(x=x, y=y, edge_index=edge_index, is_train=torch.rand(len(y)) < 0.5)


class Communities(lightning.LightningDataModule):
    """The graph, and this process's share of its nodes."""

    data: Data | None = None

    def setup(self, stage: str) -> None:
        if self.data is None:  # Lightning calls it before each of fit, validate and test
            data = make_graph() if self.trainer.is_global_zero else None
            self.data = peergraph_pyg.share(data, device=self.trainer.strategy.root_device)  # (2)

    def loader(self, nodes: Tensor, shuffle: bool) -> NeighborLoader:
        share = nodes[self.trainer.global_rank :: self.trainer.world_size]
        return NeighborLoader(self.data, [10, 10], share, batch_size=128, shuffle=shuffle)

    def train_dataloader(self) -> NeighborLoader:
        return self.loader(self.data.is_train.clone().cpu().nonzero().view(-1), shuffle=True)

    def val_dataloader(self) -> NeighborLoader:
        return self.loader((~self.data.is_train.clone().cpu()).nonzero().view(-1), shuffle=False)


class Sage(lightning.LightningModule):
    """Two layers of GraphSAGE."""

    def __init__(self) -> None:
        super().__init__()
        self.model: nn.Module = GraphSAGE(5, 32, 2, 5)
        self.model = peergraph_pyg.accelerate(self.model)  # (3)

    def logits(self, batch: Data) -> Tensor:
        return self.model(batch.x, batch.edge_index)[: batch.batch_size]

    def training_step(self, batch: Data, index: int) -> Tensor:
        return F.cross_entropy(self.logits(batch), batch.y[: batch.batch_size])

    def validation_step(self, batch: Data, index: int) -> None:
        right = (self.logits(batch).argmax(1) == batch.y[: batch.batch_size]).float().mean()
        self.log("accuracy", right, batch_size=batch.batch_size, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--accelerator", default="auto", help="cpu, gpu or auto")
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    on_gpu = args.accelerator != "cpu" and torch.cuda.is_available()
    devices = torch.cuda.device_count() if on_gpu else 2
    trainer = lightning.Trainer(
        accelerator="gpu" if on_gpu else "cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", devices)),
        strategy=args.strategy,
        max_epochs=args.epochs,
        use_distributed_sampler=False,  # the loaders have this process's nodes already
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
    )
    communities, model = Communities(), Sage()
    trainer.fit(model, communities)
    [result] = trainer.validate(model, communities, verbose=False)
    if trainer.is_global_zero:
        print(f"accuracy {result['accuracy']:.3f} of {trainer.world_size} processes")


if __name__ == "__main__":
    main()
