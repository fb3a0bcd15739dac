"""The CUDA streams of an exchange of rows."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch


class ExchangeStreams(NamedTuple):
    """Streams whose kernels start before queued kernels of the model; None on the CPU.

    Attributes:
        rows: of the rows that are sent and received.
        ids: of the thread that exchanges ids.
        batches: of the work that makes batches.
    """

    rows: torch.cuda.Stream | None
    ids: torch.cuda.Stream | None
    batches: torch.cuda.Stream | None

    @classmethod
    def create(cls, device: torch.device) -> ExchangeStreams:
        """Creates the streams on a device."""
        if device.type == "cpu":
            return cls(None, None, None)
        return cls(
            *(torch.cuda.Stream(device, priority=-1) for _ in cls._fields)  # type: ignore[no-untyped-call]
        )


def in_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Returns a context in which torch works on a stream; for None it does nothing."""
    # torch's own context for None would initialise CUDA.
    return nullcontext() if stream is None else torch.cuda.stream(stream)
