"""`capture` of batches with tables of PyTorch Frame."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("torch_frame")

from torch_frame import TensorFrame, stype
from torch_frame.data.stats import StatType
from torch_frame.nn import (
    EmbeddingEncoder,
    LinearEmbeddingEncoder,
    LinearEncoder,
    ResNet,
)
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import HeteroConv, SAGEConv

import peergraph_pyg
from tests.adapters.captured_results import adam
from tests.adapters.pyg.captured.training import BATCH, check
from tests.adapters.pyg.frames import random_frame

ROWS = {"user": 300, "order": 500}
STYPES = (stype.numerical, stype.categorical, stype.embedding)


def statistics_of(frame: TensorFrame) -> dict[str, dict[StatType, Any]]:
    """What the encoders need of each column."""
    statistics: dict[str, dict[StatType, Any]] = {}
    for name in frame.col_names_dict[stype.numerical]:
        statistics[name] = {StatType.MEAN: 0.1, StatType.STD: 1.0}
    for name in frame.col_names_dict[stype.categorical]:
        statistics[name] = {StatType.COUNT: ([str(i) for i in range(9)], [1] * 9)}
    embedding = frame.feat_dict[stype.embedding]
    names, widths = frame.col_names_dict[stype.embedding], embedding.offset.diff().tolist()
    for name, width in zip(names, widths, strict=True):
        statistics[name] = {StatType.EMB_DIM: width}
    return statistics


def tables() -> HeteroData:
    """A database of users and their orders, also with times, and columns of edges."""
    random = torch.Generator().manual_seed(0)
    data = HeteroData()
    for seed, (node_type, rows) in enumerate(ROWS.items()):
        data[node_type].tf = random_frame(rows, seed, STYPES)
        data[node_type].tf.col_stats = statistics_of(data[node_type].tf)
    data["order"].times = random_frame(ROWS["order"], 5, (stype.timestamp,))
    data["user"].y = torch.randint(3, (ROWS["user"],), generator=random)
    ends = [torch.randint(ROWS[t], (2000,), generator=random) for t in ("order", "user")]
    data["order", "of", "user"].edge_index = torch.stack(ends)
    data["user", "rev_of", "order"].edge_index = torch.stack(ends[::-1])
    data["order", "of", "user"].prices = random_frame(2000, 7, (stype.numerical,))
    return data


class Relational(nn.Module):
    """Encoders of the tables, and two layers over their keys."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict(
            {
                node_type: ResNet(
                    channels=8,
                    out_channels=8,
                    num_layers=1,
                    col_stats=data[node_type].tf.col_stats,
                    col_names_dict=data[node_type].tf.col_names_dict,
                    dropout_prob=0.0,
                    stype_encoder_dict={
                        stype.numerical: LinearEncoder(),
                        stype.categorical: EmbeddingEncoder(),
                        stype.embedding: LinearEmbeddingEncoder(),
                    },
                )
                for node_type in ROWS
            }
        )
        self.convs = nn.ModuleList(
            HeteroConv({t: SAGEConv((8, 8), 8) for t in data.edge_types}) for _ in range(2)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, batch: Any) -> Tensor:
        x = {t: encode(batch[t].tf) for t, encode in self.encoders.items()}
        years = batch["order"].times.feat_dict[stype.timestamp][:, 0, :1]
        x["order"] = x["order"] + years / 60
        for conv in self.convs:
            x = {t: rows.relu() for t, rows in conv(x, batch.edge_index_dict).items()}
        out: Tensor = self.head(x["user"])
        return out


def make_loader(device: torch.device, data: HeteroData) -> NeighborLoader:
    """Returns a loader of six full batches and one of 8 seeds, in a random order."""
    users = "user", torch.arange(50, 250)
    shared = peergraph_pyg.share(data, device=device)
    return NeighborLoader(shared, [4, 3], users, batch_size=BATCH, shuffle=True)


def loss_of(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    size = batch["user"].batch_size
    out = model(batch)[:size]
    # Missing values are NaN, also in a frame of seeds.
    numbers = batch["user"].tf.feat_dict[stype.numerical][:size].nan_to_num()
    return F.cross_entropy(out, batch["user"].y[:size]) + out.mean() * numbers.mean(), numbers


def make_model(device: torch.device, data: HeteroData) -> nn.Module:
    torch.manual_seed(5)
    return peergraph_pyg.accelerate(Relational(data).to(device))


def test_losses_are_those_of_the_loop(device: torch.device) -> None:
    data = tables()
    check(make_loader(device, data), lambda: make_model(device, data), loss_of)


@pytest.mark.parametrize("kind", [stype.numerical, stype.embedding, None])
def test_losses_that_depend_on_padding(device: torch.device, kind: stype | None) -> None:
    """Of dense columns, of joined ones, and of those of edges."""
    data = tables()
    loader, model = make_loader(device, data), make_model(device, data)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        frame = batch["order"].tf if kind else batch["order", "of", "user"].prices
        rows = frame.feat_dict[kind or stype.numerical]
        values: Tensor = rows if isinstance(rows, Tensor) else rows.values
        return loss_of(model, batch)[0] + values.nan_to_num().mean()

    training = peergraph_pyg.capture(loader, model, adam(model), loss)
    with pytest.raises(ValueError, match="depends on rows of padding"):
        next(iter(training))


def test_refused_frames() -> None:
    cpu = torch.device("cpu")
    plain = Data(edge_index=torch.randint(40, (2, 200)), num_nodes=40)
    plain.tf = random_frame(40, 0, (stype.numerical, stype.multicategorical))
    loader = NeighborLoader(peergraph_pyg.share(plain, device=cpu), [3])
    model = nn.Linear(2, 2)
    with pytest.raises(NotImplementedError, match=r"'tf' with lists \(multicategorical\) in the"):
        peergraph_pyg.capture(loader, model, adam(model), loss_of)
    peergraph_pyg.store_of(loader.data).close()
    plain = Data(x=torch.randn(40, 3), edge_index=torch.randint(40, (2, 200)))
    loader = NeighborLoader(peergraph_pyg.share(plain, device=cpu), [3])
    loader.data.tf = random_frame(40, 0, STYPES)
    with pytest.raises(NotImplementedError, match="a TensorFrame that is not shared, 'tf', in the"):
        peergraph_pyg.capture(loader, model, adam(model), loss_of)
    peergraph_pyg.store_of(loader.data).close()
