"""The first message of a round of the exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.memory.distributed.row_set import RowSet

_WORD_BYTES = 8


@dataclass(frozen=True)
class RoundHeader:
    """What one rank tells another rank at the beginning of a round."""

    loader_hash: int
    """The hash of the loader that the sender iterates."""
    round: int
    """The number of the round."""
    finished: bool
    """Whether the sender has no more batches."""
    wanted: Mapping[RowSet, tuple[int, int]]
    """For each row set: the tables, as bits, and the number of rows that the receiver fetches for
    the sender. Row sets of which the sender reads no table are left out."""

    @staticmethod
    def num_bytes(sets: Sequence[RowSet]) -> int:
        """Returns the bytes of a message."""
        return _WORD_BYTES * (3 + 2 * len(sets))

    def to_message(self, sets: Sequence[RowSet]) -> Tensor:
        """Returns the header as uint8 [bytes] on the CPU."""
        words = [self.loader_hash, self.round, int(self.finished)]
        for rows in sets:
            words += self.wanted.get(rows, (0, 0))
        return torch.tensor(words, device="cpu").view(torch.uint8)

    @classmethod
    def from_message(cls, message: Tensor, sets: Sequence[RowSet]) -> RoundHeader:
        """Reads what :meth:`to_message` returned."""
        loader_hash, number, finished, *words = message.view(torch.int64).tolist()
        pairs = zip(sets, words[::2], words[1::2], strict=True)
        wanted = {rows: (mask, count) for rows, mask, count in pairs if mask}
        return cls(loader_hash, number, bool(finished), wanted)
