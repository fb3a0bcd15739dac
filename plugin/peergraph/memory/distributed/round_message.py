"""What one rank tells another rank at the beginning of a round of the exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from peergraph.memory.distributed.row_set import RowSet

WORD_BYTES = 8
# The number of words, the loader, the round and the ranks that have finished.
_FIXED_WORDS = 4


@dataclass(frozen=True)
class RoundMessage:
    """A header, and the rows that the sender wants from the receiver."""

    loader_hash: int
    """The hash of the loader that the sender iterates."""
    round: int
    """The number of the round."""
    finished: int
    """How many of the ranks for which the sender asks have no more batches."""
    masks: Mapping[RowSet, int]
    """For each row set: the tables, as bits. Row sets without a table are left out."""
    ids: Mapping[RowSet, np.ndarray]
    """For the same row sets: the ids of the wanted rows, int64."""

    @staticmethod
    def header_words(sets: Sequence[RowSet]) -> int:
        """Returns the number of words before the ids."""
        return _FIXED_WORDS + 2 * len(sets)

    def encode(self, sets: Sequence[RowSet]) -> np.ndarray:
        """Returns the message as int64 words; the first one is their number."""
        ids = [self.ids[rows] for rows in sets if rows in self.masks]
        words = [0, self.loader_hash, self.round, self.finished]
        for rows in sets:
            words += (self.masks[rows], len(self.ids[rows])) if rows in self.masks else (0, 0)
        message = np.concatenate([np.array(words), *ids])
        message[0] = len(message)
        return message

    @classmethod
    def decode(cls, message: np.ndarray, sets: Sequence[RowSet]) -> RoundMessage:
        """Reads what :meth:`encode` returned."""
        begin = cls.header_words(sets)
        _, loader_hash, number, finished, *words = message[:begin].tolist()
        masks, ids = {}, {}
        for rows, mask, count in zip(sets, words[::2], words[1::2], strict=True):
            if mask:
                masks[rows], ids[rows] = mask, message[begin : begin + count]
            begin += count
        return cls(loader_hash, number, finished, masks, ids)
