"""Packs matrices into one message or one region: each matrix begins at a multiple of 16 bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

ALIGNMENT = 16
# The number of rows and the bytes of a row, for each matrix.
Sizes = Sequence[tuple[int, int]]


def packed_offsets(sizes: Sizes) -> list[int]:
    """Returns the offset of each matrix in bytes. The last number is the end of the message."""
    offsets = [0]
    for count, row_bytes in sizes:
        offsets.append(offsets[-1] + -(-count * row_bytes // ALIGNMENT) * ALIGNMENT)
    return offsets


def pack(pieces: Sequence[Tensor], device: torch.device) -> Tensor:
    """Returns uint8 matrices [rows, row bytes] as one message on the device.

    The message of a single matrix on the device shares its memory if it needs no padding.
    """
    if len(pieces) == 1 and pieces[0].device == device and pieces[0].numel() % ALIGNMENT == 0:
        return pieces[0].view(-1)
    sizes = [(len(piece), piece.size(1)) for piece in pieces]
    message = torch.empty(packed_offsets(sizes)[-1], dtype=torch.uint8, device=device)
    for piece, part in zip(pieces, unpack(message, sizes), strict=True):
        part.copy_(piece)
    return message


def unpack(message: Tensor, sizes: Sizes) -> Iterator[Tensor]:
    """Yields the matrices of a message as views, uint8 [rows, row bytes]."""
    for (count, row_bytes), begin in zip(sizes, packed_offsets(sizes), strict=False):
        yield message[begin : begin + count * row_bytes].view(count, row_bytes)
