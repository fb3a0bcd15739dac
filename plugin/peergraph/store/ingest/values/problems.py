"""The reasons why rows of a batch have no value."""

from __future__ import annotations

import copy

import numpy as np

from peergraph.store.ingest.values.arrow_arrays import Array, Mask

MISSING = "is missing"
NAN = "is NaN"
NO_NUMBER = "is no number"
NOT_WHOLE = "is no whole number"
TOO_LARGE = "is too large"
ROUNDED = "would be rounded"
OTHER_LENGTH = "is a list of another length"


class Problems:
    """The rows of a batch that have no value: each one with the first reason that was found."""

    def __init__(self, num_rows: int) -> None:
        self.bad: Mask = np.zeros(num_rows, np.bool_)
        """``[num_rows]`` which rows have a reason."""
        self.masks: dict[str, Mask] = {}
        """The rows of each reason, ``[num_rows]``."""
        self.values: dict[str, Array] = {}
        """``[num_rows]`` values that tell more than some reasons."""
        self._what = ""

    def add(self, reason: str, mask: Mask, values: Array | None = None) -> None:
        """Adds rows.

        Args:
            reason: the reason why they have no value.
            mask: a mask ``[n]`` of the rows; or ``[n, ...]``, of rows with such a value.
            values: ``[n]`` values that the report shows.
        """
        if not mask.any():
            return
        rows = mask.reshape(len(mask), -1).any(axis=1) & ~self.bad
        if rows.any():
            reason = self._what + reason
            self.masks[reason] = self.masks.get(reason, np.zeros_like(rows)) | rows
            self.bad |= rows
            if values is not None:
                self.values[reason] = values

    def of(self, what: str) -> Problems:
        """Returns the same problems; reasons that are added begin with the name of a value."""
        other = copy.copy(self)
        other._what = f"{what} "
        return other
