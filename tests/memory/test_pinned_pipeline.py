"""Double-buffered copies through pinned memory: every row arrives, in pieces of any size."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from peergraph.memory.device.pinned_pipeline import PinnedPipeline
from tests.memory.tables import random_rows, same_bits
from tests.named_case import named_cases


class Immediate:
    """A stream or an event of a device that does all work at once."""

    def __init__(self, device: object = None) -> None:
        pass

    def _pass(self, other: object = None) -> None:
        pass

    record = synchronize = _pass


@pytest.fixture
def stream(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Any:
    if device.type == "cuda":
        return torch.cuda.current_stream(device)
    monkeypatch.setattr(torch.cuda, "Event", Immediate)
    return Immediate()


# One piece, several, an uneven last one, rows wider than the buffers, no rows.
@named_cases(
    ("rows", "row_bytes", "buffer_bytes"),
    [(9, 4, 1000), (9, 4, 12), (10, 4, 12), (5, 300, 64), (0, 4, 12), (1, 1, 1)],
)
def test_there_and_back(
    device: torch.device, stream: Any, rows: int, row_bytes: int, buffer_bytes: int
) -> None:
    values = random_rows((rows, row_bytes), torch.uint8)
    pipeline = PinnedPipeline(device, buffer_bytes)
    on_device = torch.zeros(rows, row_bytes, dtype=torch.uint8, device=device)
    for part, piece in pipeline.upload(
        rows, row_bytes, stream, lambda part, buffer: buffer.copy_(values[part])
    ):
        assert piece.device == device
        on_device[part] = piece
    assert same_bits(on_device, values)
    out = torch.zeros_like(values)
    pipeline.download(out, stream, lambda part: on_device[part])
    assert same_bits(out, values)
    # Wider rows than before need larger buffers.
    wide = random_rows((3, 2 * row_bytes), torch.uint8, seed=1)
    out = torch.zeros_like(wide)
    pipeline.download(out, stream, lambda part: wide.to(device)[part])
    assert same_bits(out, wide)
