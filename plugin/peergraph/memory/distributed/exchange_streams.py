"""The CUDA streams of an exchange of rows."""

from __future__ import annotations

from typing import NamedTuple

import torch


class ExchangeStreams(NamedTuple):
    """Streams whose kernels start before queued kernels of the model.

    Attributes:
        rows: of the rows that are sent and received.
        ids: of the thread that exchanges ids.
        batches: of the thread that makes batches.
    """

    rows: torch.cuda.Stream
    ids: torch.cuda.Stream
    batches: torch.cuda.Stream

    @classmethod
    def on(cls, device: torch.device) -> ExchangeStreams | None:
        """Returns new streams of a GPU; None for the CPU."""
        if device.type == "cpu":
            return None
        return cls(
            *(torch.cuda.Stream(device, priority=-1) for _ in cls._fields)  # type: ignore[no-untyped-call]
        )
