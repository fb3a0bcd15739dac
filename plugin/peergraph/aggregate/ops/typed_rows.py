"""Rows of features by node type, which operations of typed layers read in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peergraph.memory import EncodedRows

# Bytes of the selected rows that are in memory at a time.
_PIECE_BYTES = 1 << 29


@dataclass(frozen=True)
class RowReader:
    """Reads rows of features in pieces; `encoded` has None for features that are tensors.

    A function of autograd keeps the tensors, and gives them to the methods.
    """

    encoded: list[EncodedRows | None]
    dtype: torch.dtype
    """Of the rows that are read."""

    def select(self, features: Sequence[Tensor], feature: int, rows: Tensor | slice) -> Tensor:
        """Returns some rows of features, converted."""
        encoded = self.encoded[feature]
        if encoded is not None:
            return encoded.select(rows, self.dtype)
        x = features[feature]
        chosen = x[rows] if isinstance(rows, slice) else x.index_select(0, rows)
        return chosen if chosen.dtype == self.dtype else chosen.to(self.dtype)

    def pieces(self, features: Sequence[Tensor], feature: int, count: int) -> Iterator[slice]:
        """Returns the ranges in which `count` rows of features are read."""
        encoded = self.encoded[feature]
        columns = (features[feature] if encoded is None else encoded).shape[1]
        step = max(1, _PIECE_BYTES // max(1, columns * self.dtype.itemsize))
        for first in range(0, count, step):
            yield slice(first, min(first + step, count))

    def in_pieces(
        self, features: Sequence[Tensor], feature: int, rows: Tensor | slice, *tensors: Tensor
    ) -> Iterator[tuple[Any, ...]]:
        """Returns the pieces of rows of features, and of tensors with a row for each of them.

        Args:
            rows: ids, or the range of the first ones.
        """
        pieces = list(self.pieces(features, feature, tensors[0].shape[0]))
        if len(pieces) == 1:
            yield rows, *tensors
        else:
            for piece in pieces:
                of_rows = piece if isinstance(rows, slice) else rows[piece]
                yield of_rows, *[tensor[piece] for tensor in tensors]


def split_encoded(
    features: Sequence[Tensor | EncodedRows], dtype: torch.dtype
) -> tuple[list[EncodedRows | None], list[Tensor]]:
    """Returns the features for a :class:`RowReader`, and tensors for a function of autograd.

    Gradients are in the dtype of the products.
    """
    encoded = [each if isinstance(each, EncodedRows) else None for each in features]
    tensors = [
        torch.empty(0, device=each.device) if isinstance(each, EncodedRows) else each
        for each in features
    ]
    records = torch.is_grad_enabled()
    return encoded, [each.to(dtype) if each.requires_grad and records else each for each in tensors]
