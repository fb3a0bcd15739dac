"""The progress bar of passes over chunks, and the total of their bytes."""

from __future__ import annotations

import pytest
import torch

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.passes.chunk_pass import ChunkPass
from peergraph.fullgraph.offload.passes.pass_progress import PassProgress
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.offload.rows.transfer_counts import TransferCounts
from peergraph.memory import Group

CPU = torch.device("cpu")


def test_bar_shows_chunks_bytes_and_rate(capsys: pytest.CaptureFixture[str]) -> None:
    counts = TransferCounts()
    with PassProgress(3, 0, counts, CPU, 0, show=True) as progress:
        for _ in range(3):
            counts.to_device += 1 << 20
            progress.step()
    shown = capsys.readouterr().err
    assert "/3 [" in shown
    assert "1.0 MiB in, 0 B out" in shown
    assert "GB/s" in shown


def test_short_passes_and_other_ranks_show_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for num_bytes, rank in ((1 << 40, 1), (1 << 20, 0), (1 << 40, 0)):  # no terminal here
        with PassProgress(2, num_bytes, TransferCounts(), CPU, rank) as progress:
            progress.step()
    assert capsys.readouterr().err == ""


def test_passes_add_their_bytes_to_the_stores_total() -> None:
    group = Group(0, 1, CPU, 60.0)
    layout = RowLayout.contiguous(group, 10)
    stores = RowAllocator(group, 1 << 20, 1 << 20)
    x, out = (stores.allocate(layout, (4,), torch.float32, "sequential") for _ in range(2))
    for _ in range(2):
        chunk_pass = ChunkPass(Chunks.even(layout, 3), reads=[x], writes=[out])
        with chunk_pass:
            for chunk in chunk_pass:
                chunk.write(out, chunk.rows(x) + 1)
    assert (stores.moved.to_device, stores.moved.from_device) == (2 * 160, 2 * 160)
    assert chunk_pass.counts.to_device == 160
