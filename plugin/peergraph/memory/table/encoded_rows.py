"""Rows with narrow storage, gathered as they are stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from peergraph.memory.table.row_codec import RowCodec


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
        return _decoding_to(self.codec, dtype).decode(self.rows, ids=ids, scales=self.scales)
