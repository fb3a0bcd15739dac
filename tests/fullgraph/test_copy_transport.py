"""The exchange of rows through shared memory: by copy engines on GPUs, by threads on the CPU."""

from __future__ import annotations

import os

import pytest
import torch

from peergraph.fullgraph.exchange import copy_transport
from peergraph.fullgraph.exchange.copy_transport import CopyTransport
from peergraph.fullgraph.exchange.transport import Transport
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.gpu_numbers import GPU_NUMBERS

from .test_block_stages import check_stages
from .test_halo import check_exchange


def sent(sender: int, reader: int, step: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank sends to another one: from nothing to many chunks."""
    size = (sender * 31 + reader * 17 + step * 101) % 400
    return (torch.arange(size) * (sender + 1) + reader - step).to(dtype)


def check_exchanges(transport: Transport) -> None:
    group = transport.group
    others = [rank for rank in range(group.world_size) if rank != group.rank]
    running = []
    for step in range(12):
        dtype = (torch.float32, torch.int64, torch.uint8)[step % 3]
        expected = {r: sent(r, group.rank, step, dtype).to(group.device) for r in others}
        outputs = {rank: torch.empty_like(tensor) for rank, tensor in expected.items()}
        inputs = {r: sent(group.rank, r, step, dtype).to(group.device) for r in others}
        running.append((transport.start(outputs, inputs), outputs, expected))
        if len(running) < 2:
            continue
        pending, outputs, expected = running.pop(0)
        pending.wait()
        for rank in others:
            assert torch.equal(outputs[rank], expected[rank]), (step, rank)
    running[0][0].wait()


def check_copies() -> None:
    os.environ["PEERGRAPH_TRANSPORT"] = "copy"
    copy_transport.CHUNK_BYTES = 256
    transport = Transport.of(Group.current())
    if transport.group.world_size > 1:
        assert type(transport) is CopyTransport
    check_exchanges(transport)  # without shared memory, which the next call makes
    ranks = range(transport.group.world_size)
    device = transport.group.device
    outputs = [torch.zeros(3, device=device) for _ in ranks]
    inputs = [torch.full((3,), transport.group.rank, device=device) for _ in ranks]
    transport.all_to_all(outputs, [tensor.float() for tensor in inputs])
    assert [int(tensor[0]) for tensor in outputs] == list(ranks)
    check_exchanges(transport)
    check_stages()
    check_exchange()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_rows_travel_by_copies(ranks: int) -> None:
    run_ranks(check_copies, ranks)


@pytest.mark.parametrize("ranks", GPU_NUMBERS)
def test_rows_travel_by_copy_engines(ranks: int) -> None:
    run_ranks(check_copies, ranks, device="cuda")
