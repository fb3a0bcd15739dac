"""Splits a table of PyTorch Frame into the tables of a store and a description of its columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch_geometric.typing import TensorFrame

from peergraph.store import TARGET, FrameField, FrameSpec, RowSource

_STATISTICS = "col_stats"
_STATE = frozenset({"feat_dict", "col_names_dict", "y", "_num_rows", "_col_to_stype_idx"})
_TEXTS_AND_NUMBERS = (str, bool, int, float, type(None))


@dataclass
class FrameSource:
    """A frame as the source of a store.

    Args:
        spec: its columns.
        tables: the rows of each field, by the name of its table.
        elements: of each field of lists, the elements of all rows, by the name of its table.
    """

    spec: FrameSpec
    tables: dict[str, Tensor | RowSource] = field(default_factory=dict)
    elements: dict[str, Tensor | RowSource] = field(default_factory=dict)


def split_frame(name: str, frame: TensorFrame, plain: Callable[[str, Any], Tensor]) -> FrameSource:
    """Splits a plain frame.

    Args:
        name: the name of the attribute, with which those of the tables begin.
        frame: the frame; its tensors are not copied.
        plain: makes a tensor of a name a plain one on the CPU.

    Raises:
        NotImplementedError: naming a part of the frame that a store cannot hold.
        ValueError: the lists of a field overlap.
    """
    if type(frame) is not TensorFrame:
        raise NotImplementedError(
            f"{name!r}: the store holds torch_frame.TensorFrame, not {type(frame).__name__}"
        )
    for attribute in sorted(vars(frame).keys() - _STATE - {_STATISTICS}):
        raise NotImplementedError(
            f"{name!r} has an attribute {attribute!r}, which is no part of a TensorFrame and "
            "would be lost in batches: put it beside the frame, in the data"
        )
    columns = {stype.value: tuple(names) for stype, names in frame.col_names_dict.items()}
    source = FrameSource(FrameSpec(columns, (), _plain_statistics(name, frame)))
    fields = []
    for stype, key, values in _fields_of(frame):
        described = _described(stype, key, values)
        table = described.table(name)
        if table in source.tables:
            raise ValueError(f"{name!r}: two fields have the name {table!r}")
        tensor = plain(table, values if isinstance(values, Tensor) else values.values)
        if described.layout == "lists":
            source.elements[table] = tensor
            tensor = _bounds(table, plain(table, values.offset), values.num_rows, values.num_cols)
        source.tables[table] = tensor
        fields.append(described)
    source.spec = FrameSpec(columns, tuple(fields), source.spec.statistics)
    return source


def ragged(layout: str, rows: int, columns: int, values: Tensor, offset: Tensor) -> Any:
    """Returns a ``MultiEmbeddingTensor`` of joined columns, or a ``MultiNestedTensor`` of lists.

    Their own checks would wait for the GPU several times.
    """
    kind = _ragged_class(layout)
    nested = kind.__new__(kind)
    nested.num_rows, nested.num_cols = rows, columns
    nested.values, nested.offset = values, offset
    return nested


@cache
def _ragged_class(layout: str) -> Any:
    from torch_frame.data import MultiEmbeddingTensor, MultiNestedTensor

    return MultiEmbeddingTensor if layout == "joined" else MultiNestedTensor


def stype_class() -> Any:
    """Returns the class of PyTorch Frame's semantic types; ``ImportError`` says how to get it."""
    try:
        from torch_frame import stype
    except ImportError as error:
        raise ImportError("frames of a store need PyTorch Frame: pip install pytorch-frame") from (
            error
        )
    return stype


def statistics_of(spec: FrameSpec) -> dict[str, dict[Any, Any]]:
    """Returns the statistics of a frame's columns with PyTorch Frame's own keys and values."""
    from torch_frame.data.stats import StatType

    return {
        column: {StatType[name]: _statistic(name, value) for name, value in of.items()}
        for column, of in spec.statistics.items()
    }


def _statistic(name: str, value: Any) -> Any:
    if name.endswith("_TIME"):
        return torch.tensor(value, device="cpu")
    if name.endswith("COUNT"):
        return tuple([*part] for part in value)
    if isinstance(value, (list, tuple)):
        return [math.nan if one is None else one for one in value]
    return math.nan if value is None else value


def _plain_statistics(name: str, frame: TensorFrame) -> dict[str, dict[str, Any]]:
    """Returns the statistics of a frame as JSON can hold them: NaN becomes null."""
    by_column = getattr(frame, _STATISTICS, {})
    if not isinstance(by_column, Mapping):
        raise NotImplementedError(f"{name!r}.{_STATISTICS} must be a dict, by column")
    return {
        str(column): {
            kind.name: _json(value, f"{name!r}.{_STATISTICS}") for kind, value in of.items()
        }
        for column, of in by_column.items()
    }


def _json(value: Any, where: str) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_json(one, where) for one in value]
    if not isinstance(value, _TEXTS_AND_NUMBERS):
        raise NotImplementedError(
            f"{where}: a store holds texts and numbers as statistics, not {type(value).__name__}"
        )
    return None if isinstance(value, float) and math.isnan(value) else value


def _fields_of(frame: TensorFrame) -> Iterator[tuple[str, str | None, Any]]:
    """Yields the semantic type, the key in a dictionary, and the values of each field."""
    for stype, values in frame.feat_dict.items():
        if isinstance(values, Mapping):
            yield from ((stype.value, key, one) for key, one in values.items())
        else:
            yield stype.value, None, values
    if frame.y is not None:
        yield TARGET, None, frame.y


def _described(stype: str, key: str | None, values: Any) -> FrameField:
    from torch_frame.data import MultiEmbeddingTensor, MultiNestedTensor

    if isinstance(values, Tensor) and values.layout is torch.strided:
        return FrameField(stype, key, "dense")
    if isinstance(values, MultiEmbeddingTensor) and stype != TARGET:
        return FrameField(stype, key, "joined", tuple(values.offset.tolist()))
    if isinstance(values, MultiNestedTensor) and stype != TARGET:
        return FrameField(stype, key, "lists")
    raise NotImplementedError(
        f"{stype} of a frame cannot be in a store as {type(values).__name__}; dense tensors, "
        "MultiEmbeddingTensor and MultiNestedTensor can"
    )


def _bounds(table: str, offset: Tensor, rows: int, columns: int) -> Tensor:
    """Returns the bounds of each row's lists, [rows, columns + 1], over the same memory."""
    offset = offset.long()
    if bool((offset.diff() < 0).any()):
        raise ValueError(f"{table!r}: the offsets of lists must not fall")
    if rows == 0:
        return offset.new_zeros(0, columns + 1)
    return offset.unfold(0, columns + 1, columns)
