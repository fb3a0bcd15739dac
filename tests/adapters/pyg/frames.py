"""Random frames of PyTorch Frame, and their comparison bit by bit, for tests of frames."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_frame import TensorFrame, stype
from torch_frame.data import MultiEmbeddingTensor, MultiNestedTensor
from torch_frame.data.stats import StatType
from torch_geometric.data import HeteroData

STYPES = (
    *(stype.numerical, stype.categorical, stype.multicategorical, stype.timestamp),
    *(stype.embedding, stype.text_tokenized, stype.sequence_numerical),
)


def random_frame(rows: int, seed: int = 0, stypes: tuple[stype, ...] = STYPES) -> TensorFrame:
    """A frame with missing values in columns of each semantic type, and targets."""
    random = torch.Generator().manual_seed(seed)
    columns = {s: int(torch.randint(1, 4, (), generator=random)) for s in stypes}
    makers = {
        stype.numerical: _numbers,
        stype.categorical: lambda n, k, g: torch.randint(-1, 9, (n, k), generator=g),
        stype.multicategorical: lambda n, k, g: nested(n, k, g, torch.int64),
        stype.timestamp: lambda n, k, g: torch.randint(-1, 60, (n, k, 7), generator=g),
        stype.embedding: _embedding,
        stype.text_tokenized: lambda n, k, g: {
            "input_ids": nested(n, k, g, torch.int64),
            "attention_mask": nested(n, k, g, torch.bool),
        },
        stype.sequence_numerical: lambda n, k, g: nested(n, k, g, torch.float32),
    }
    frame = TensorFrame(
        {s: makers[s](rows, k, random) for s, k in columns.items()},
        {s: [f"{s.value}_{i}" for i in range(k)] for s, k in columns.items()},
        torch.rand(rows, generator=random),
    )
    frame.col_stats = {
        "numerical_0": {
            StatType.MEAN: 0.5,
            StatType.STD: float("nan"),
            StatType.QUANTILES: [0.0, 0.25, 0.5, float("nan"), 1.0],
        },
        "categorical_0": {StatType.COUNT: (["a", "b"], [7, 2])},
        "timestamp_0": {StatType.YEAR_RANGE: [1999, 2024], StatType.NEWEST_TIME: torch.arange(7)},
        "embedding_0": {StatType.EMB_DIM: 3},
    }
    return frame


def _numbers(rows: int, columns: int, random: torch.Generator) -> Tensor:
    values = torch.randn(rows, columns, generator=random)
    return values.masked_fill(torch.rand(rows, columns, generator=random) < 0.2, float("nan"))


def nested(
    rows: int, columns: int, random: torch.Generator, dtype: torch.dtype
) -> MultiNestedTensor:
    """Lists of 0 to 5 elements, some of which are -1, the mark of a missing value."""
    lengths = torch.randint(0, 6, (rows * columns,), generator=random)
    offset = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    values = torch.randint(-1, 50, (int(offset[-1]),), generator=random).to(dtype)
    return MultiNestedTensor(rows, columns, values, offset)


def _embedding(rows: int, columns: int, random: torch.Generator) -> MultiEmbeddingTensor:
    widths = torch.randint(1, 5, (columns,), generator=random).tolist()
    return MultiEmbeddingTensor.from_tensor_list(
        [torch.randn(rows, width, generator=random) for width in widths]
    )


def random_tables(seed: int = 0, rows: tuple[int, int, int] = (30, 70, 0)) -> HeteroData:
    """A database of users, orders and an empty table, with keys as edges in both directions."""
    random = torch.Generator().manual_seed(seed)
    users, orders, notes = rows
    data = HeteroData()
    data["user"].tf = random_frame(users, seed)
    data["order"].tf = random_frame(orders, seed + 1)
    data["order"].time = torch.randint(0, 100, (orders,), generator=random)
    data["note"].tf = random_frame(notes, seed + 2)
    keys = torch.stack([torch.arange(orders), torch.randint(users, (orders,), generator=random)])
    data["order", "f2p_user", "user"].edge_index = keys
    data["user", "rev_f2p_user", "order"].edge_index = keys.flip(0)
    data["note", "f2p_user", "user"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    data["order", "f2p_user", "user"].frame = random_frame(orders, seed + 3, STYPES[:5])
    return data


def check_same_frame(mine: Any, expected: TensorFrame, device: torch.device | str = "cpu") -> None:
    """A plain frame on a device equals another one bit by bit, with names and statistics."""
    assert type(mine) is TensorFrame
    assert mine.num_rows == expected.num_rows
    assert mine.col_names_dict == expected.col_names_dict
    assert list(mine.feat_dict) == list(expected.feat_dict)
    for kind, values in expected.feat_dict.items():
        _check(mine.feat_dict[kind], values, torch.device(device))
    assert (mine.y is None) == (expected.y is None)
    if expected.y is not None:
        _check(mine.y, expected.y, torch.device(device))
    check_same_statistics(getattr(mine, "col_stats", {}), getattr(expected, "col_stats", {}))


def check_same_statistics(mine: Any, expected: Any) -> None:
    assert mine.keys() == expected.keys()
    for column, of in expected.items():
        assert mine[column].keys() == of.keys()
        for kind, value in of.items():
            other = mine[column][kind]
            assert type(other) is type(value)
            assert repr(other) == repr(value)  # NaN equals no NaN


def _check(mine: Any, expected: Any, device: torch.device) -> None:
    assert type(mine) is type(expected)
    if isinstance(expected, dict):
        assert list(mine) == list(expected)
        for key, values in expected.items():
            _check(mine[key], values, device)
        return
    if not isinstance(expected, Tensor):
        assert mine.shape == expected.shape
        _check(mine.offset, expected.offset, device)
        mine, expected = mine.values, expected.values
    assert mine.device == device
    assert mine.dtype == expected.dtype
    assert mine.shape == expected.shape
    assert torch.equal(mine.cpu().nan_to_num(-77.5), expected.nan_to_num(-77.5))
