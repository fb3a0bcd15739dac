"""Rows of a batch with narrow storage, gathered as they are stored."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import launch_on
from peergraph.memory.table.id_list import id_list
from peergraph.memory.table.row_codec import RowCodec
from peergraph.memory.table.table_view import dense_view


@dataclass(frozen=True)
class EncodedRows:
    """Encoded rows in a rank's own memory; they are decoded when they are read.

    Args:
        codec: encodes and decodes rows.
        rows: the stored rows, uint8 [n, codec.row_bytes], contiguous.
    """

    codec: RowCodec
    rows: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the decoded rows."""
        return (len(self.rows), *self.codec.row_shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that users see."""
        return self.codec.dtype

    @property
    def device(self) -> torch.device:
        """The device of the rows."""
        return self.rows.device

    def select(self, ids: Tensor | slice, dtype: torch.dtype) -> Tensor:
        """Returns the rows `ids`, decoded. Asynchronous on a GPU.

        Args:
            ids: [n] int32 or int64, in range; or a range of rows.
            dtype: of the result: float32, float64, float16 or bfloat16.
        """
        codec = replace(self.codec, dtype=dtype)
        if isinstance(ids, slice):
            return codec.decode(self.rows[ids])
        out = self.rows.new_empty((len(ids), *codec.row_shape), dtype=dtype)
        if out.numel():
            view = dense_view(self.rows, len(self.rows), codec.row_bytes)
            _C.decode_gather(view, codec.native, id_list(ids), out, launch_on(out.device))
        return out
