"""A model of RelBench's shape: encoders of tables, ages of rows, GraphSAGE over keys, a head."""

from __future__ import annotations

import torch_frame
from database import DAY, WORDS
from torch import Tensor, nn
from torch_frame import TensorFrame, stype
from torch_frame.config import ModelConfig
from torch_frame.nn import encoder as encoders
from torch_geometric.data import HeteroData
from torch_geometric.nn import MLP, HeteroConv, LayerNorm, PositionalEncoding, SAGEConv


class Words(nn.Module):
    """The mean of the embeddings of a text's tokens: [rows, 1, channels]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, channels, mode="mean")

    def forward(self, tokens: dict[str, torch_frame.data.MultiNestedTensor]) -> Tensor:
        ids = tokens["input_ids"]
        return self.bag(ids.values, ids.offset[:-1]).unsqueeze(1)


def table_encoder(frame: TensorFrame, channels: int) -> nn.Module:
    """A ResNet over the columns of a table."""
    texts = frame.col_names_dict.get(stype.text_tokenized, [])
    models = {column: ModelConfig(Words(channels), channels) for column in texts}
    return torch_frame.nn.ResNet(
        channels=channels,
        num_layers=2,
        out_channels=channels,
        col_stats=frame.col_stats,
        col_names_dict=frame.col_names_dict,
        stype_encoder_dict={
            stype.numerical: encoders.LinearEncoder(na_strategy=torch_frame.NAStrategy.MEAN),
            stype.categorical: encoders.EmbeddingEncoder(),
            stype.text_tokenized: encoders.LinearModelEncoder(col_to_model_cfg=models),
        },
    )


class Model(nn.Module):
    """Frames, ages of rows and (shallow) ids of products, then GraphSAGE over all keys."""

    def __init__(self, data: HeteroData, channels: int, hops: int) -> None:
        super().__init__()
        types = data.node_types
        self.frames = nn.ModuleDict({t: table_encoder(data[t].tf, channels) for t in types})
        self.ages = nn.ModuleDict(
            {
                t: nn.Sequential(PositionalEncoding(channels), nn.Linear(channels, channels))
                for t in types
                if "time" in data[t]
            }
        )
        self.shallow = nn.Embedding(data["products"].num_nodes, channels)
        self.convs = nn.ModuleList(
            HeteroConv({t: SAGEConv(channels, channels, "mean") for t in data.edge_types})
            for _ in range(hops)
        )
        self.norms = nn.ModuleList(
            nn.ModuleDict({t: LayerNorm(channels, mode="node") for t in types}) for _ in range(hops)
        )
        self.head = MLP([channels, channels, 1], norm=None)
        ends = "customers", "products"
        self.towers = nn.ModuleDict({t: nn.Linear(channels, channels) for t in ends})

    def forward(self, batch: HeteroData, seed_time: Tensor) -> dict[str, Tensor]:
        """Returns logits of customers, and vectors of customers and products."""
        x = {t: self.frames[t](batch[t].tf) for t in self.frames}
        x["products"] = x["products"] + self.shallow(batch["products"].n_id)
        for t, age in self.ages.items():
            days = (seed_time[batch[t].batch] - batch[t].time) / DAY
            x[t] = x[t] + age(days)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = {t: norm[t](h).relu() for t, h in conv(x, batch.edge_index_dict).items()}
        vectors = {t: tower(x[t]) for t, tower in self.towers.items()}
        return {"logits": self.head(x["customers"]).view(-1), **vectors}
