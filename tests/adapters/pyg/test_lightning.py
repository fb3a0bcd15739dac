"""Lightning's Trainer on shared graphs: its DDP strategies on two ranks, and PyG's data modules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import peergraph_pyg
from tests.adapters.pyg.graphs import random_data
from tests.scripts import run_python

lightning = pytest.importorskip("lightning")

EXAMPLE = Path(__file__).parents[3] / "examples/lightning_pyg.py"
pytestmark = pytest.mark.filterwarnings("ignore:::lightning")


@pytest.mark.parametrize("launch", ["torchrun", "ddp_fork"])
def test_two_processes(launch: str) -> None:
    options = ["--accelerator", "cpu", "--strategy", "ddp" if launch == "torchrun" else launch]
    done = run_python(EXAMPLE, *options, ranks=2 if launch == "torchrun" else None, timeout_s=240)
    assert done.returncode == 0, done.stderr[-3000:]
    accuracy, processes = re.findall(r"accuracy (\S+) of (\d) processes", done.stdout)[0]
    assert processes == "2"
    assert float(accuracy) > 0.6


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.model = GraphSAGE(8, 8, 1, 1)
        self.seeds: list[Tensor] = []

    def training_step(self, batch: Data, index: int) -> Tensor:
        self.seeds.append(batch.n_id[: batch.batch_size])
        return self.model(batch.x, batch.edge_index)[: batch.batch_size].square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_data_module_of_pyg(tmp_path: Path) -> None:
    from torch_geometric.data.lightning import LightningNodeData

    data = random_data()
    data.x = torch.rand(60, 8)
    shared = peergraph_pyg.share(data, device="cpu")
    nodes = torch.arange(0, 60, 2)
    module = Module()
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "max_epochs": 1}
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        **options,
    )
    trainer.fit(
        module,
        LightningNodeData(
            shared, input_train_nodes=nodes, loader="neighbor", num_neighbors=[3], batch_size=7
        ),
    )
    assert torch.equal(torch.cat(module.seeds).sort().values, nodes)
