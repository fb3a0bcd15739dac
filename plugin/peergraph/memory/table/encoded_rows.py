"""Rows with narrow storage, gathered as they are stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import launch_on
from peergraph.memory.table.id_list import id_list
from peergraph.memory.table.row_codec import RowCodec
from peergraph.memory.table.table_view import dense_view


@cache
def _decoding_to(codec: RowCodec, dtype: torch.dtype) -> RowCodec:
    return replace(codec, dtype=dtype)


@dataclass(frozen=True)
class EncodedRows:
    """Encoded rows in a rank's own memory, which are decoded when they are read.

    Args:
        codec: encodes and decodes rows.
        rows: the stored rows, uint8 [n, bytes], contiguous.
        scales: float32 [n, codec.num_groups], contiguous, where they are apart; else None.
    """

    codec: RowCodec
    rows: Tensor
    scales: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the decoded rows."""
        return (self.rows.shape[0], *self.codec.row_shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that users see."""
        return self.codec.dtype

    @property
    def device(self) -> torch.device:
        """The device of the rows."""
        return self.rows.device

    def tensors(self) -> list[Tensor]:
        """Returns the tensors that hold the rows."""
        return [self.rows] if self.scales is None else [self.rows, self.scales]

    def first(self, count: int) -> EncodedRows:
        """Returns the first `count` rows, in the same memory."""
        scales = None if self.scales is None else self.scales[:count]
        return EncodedRows(self.codec, self.rows[:count], scales)

    def decode(self) -> Tensor:
        """Returns all rows in the dtype that users see. Asynchronous on a GPU."""
        return self.select(slice(0, self.rows.shape[0]), self.dtype)

    def select(self, ids: Tensor | slice, dtype: torch.dtype) -> Tensor:
        """Returns the rows `ids`, decoded. Asynchronous on a GPU.

        Args:
            ids: [n] int32 or int64, in range; or the range of rows, with both bounds.
            dtype: of the result: float32, float64, float16 or bfloat16.
        """
        codec = _decoding_to(self.codec, dtype)
        count = ids.stop - ids.start if isinstance(ids, slice) else ids.shape[0]
        out = self.rows.new_empty((count, *codec.row_shape), dtype=dtype)
        if out.numel():
            if isinstance(ids, slice):
                chosen = _C.IdList(first=ids.start, count=count)
            else:
                chosen = id_list(ids)
            scales = None
            if self.scales is not None:
                scales = dense_view(self.scales, self.scales.shape[0], codec.scale_bytes)
            view = dense_view(self.rows, self.rows.shape[0], self.rows.shape[1])
            _C.decode_gather(view, codec.native, chosen, out, launch_on(out.device), scales)
        return out
