"""A model of RelBench's shape over the frames of the database."""

from __future__ import annotations

from typing import Any

import torch
from rgat_shape.graph import TypedGraph
from torch import Tensor, nn
from torch_frame import TensorFrame, stype
from torch_geometric.nn import HeteroConv, SAGEConv

from database_shape.tables import CATEGORIES, NUMBERS, TOKENS, VALUES_OF_CATEGORY, WIDTH


class Encoder(nn.Module):
    """Encodes the columns of a table."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.numbers = nn.Linear(NUMBERS + 7 + WIDTH, channels)
        self.categories = nn.EmbeddingBag(VALUES_OF_CATEGORY * CATEGORIES, channels)
        self.tokens = nn.EmbeddingBag(TOKENS, channels, include_last_offset=True)
        self.register_buffer("first", torch.arange(CATEGORIES) * VALUES_OF_CATEGORY)

    def forward(self, tf: TensorFrame) -> Tensor:
        columns, tokens = tf.feat_dict, tf.feat_dict[stype.text_tokenized]["input_ids"]
        times = columns[stype.timestamp][:, 0] / 60
        numbers = [columns[stype.numerical], times, columns[stype.embedding].values]
        rows = self.numbers(torch.cat(numbers, 1))
        rows = rows + self.categories(columns[stype.categorical] + self.first)
        result: Tensor = rows + self.tokens(tokens.values, tokens.offset)
        return result


class Model(nn.Module):
    """RelBench's shape: an encoder for each table, and SAGE on all relations.

    Args:
        target: the table of the seeds.
    """

    def __init__(self, graph: TypedGraph, target: str, channels: int, layers: int) -> None:
        super().__init__()
        self.target = target
        self.encoders = nn.ModuleDict({t: Encoder(channels) for t in graph.nodes})
        self.convs = nn.ModuleList(
            HeteroConv({t: SAGEConv(channels, channels) for t in graph.edge_types}, "sum")
            for _ in range(layers)
        )
        self.head = nn.Linear(channels, 1)

    def forward(self, batch: Any) -> Tensor:
        x = {t: self.encoders[t](batch[t].tf) for t in batch.node_types}
        for conv in self.convs:
            # Types without edges into them keep their rows.
            x = {**x, **{t: rows.relu() for t, rows in conv(x, batch.edge_index_dict).items()}}
        result: Tensor = self.head(x[self.target][: batch[self.target].batch_size])
        return result
