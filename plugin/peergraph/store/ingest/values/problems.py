"""The reasons why rows of a batch have no value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Mask: TypeAlias = "NDArray[np.bool_]"

MISSING = "is missing"
NAN = "is NaN"
NO_NUMBER = "is no number"
NOT_WHOLE = "is no whole number"
TOO_LARGE = "is too large"
ROUNDED = "would be rounded"
OTHER_LENGTH = "is a list of another length"


class Problems:
    """The rows of a batch that have no value: each one with the first reason that was found.

    Args:
        num_rows: the number of rows of the batch.
    """

    def __init__(self, num_rows: int) -> None:
        self.bad: Mask = np.zeros(num_rows, np.bool_)
        """``[num_rows]`` which rows have a reason."""
        self.masks: dict[str, Mask] = {}
        """The rows of each reason, ``[num_rows]``."""
        self.values: dict[str, NDArray[Any]] = {}
        """``[num_rows]`` values that tell more than some reasons."""

    def add(self, reason: str, mask: Mask, values: NDArray[Any] | None = None) -> None:
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
            self.masks[reason] = self.masks.get(reason, np.zeros_like(rows)) | rows
            self.bad |= rows
            if values is not None:
                self.values[reason] = values

    def add_all(self, others: Problems, what: str) -> None:
        """Adds the rows of the problems of one value.

        Args:
            what: names the value, before each reason.
        """
        for reason, mask in others.masks.items():
            self.add(f"{what} {reason}", mask)
