"""The exchange of rows through shared memory: by copy engines on GPUs, by threads on the CPU."""

from __future__ import annotations

import os

import torch

from peergraph.fullgraph.exchange import copy_transport
from peergraph.fullgraph.exchange.block_stages import BlockStages
from peergraph.fullgraph.exchange.copy_transport import CopyTransport
from peergraph.fullgraph.exchange.halo import HaloPlan
from peergraph.fullgraph.exchange.transport import Transport
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.gpu_numbers import each_place
from tests.named_case import named_case

from .test_block_stages import check_stages, rows_of
from .test_halo import LAYOUTS, SIZE, check_exchange, layout_of, needed_rows


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
    # Its memory is made once, however many groups and graphs there are.
    assert Transport.of(Group.current()) is transport
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
    check_slots(transport)


def check_slots(transport: Transport) -> None:
    """Stages of many widths follow each other through the slots, which grow where they must."""
    group = transport.group
    for name in LAYOUTS:
        with group.device, named_case(name):
            plan, _ = HaloPlan.make(layout_of(group, name), needed_rows(group, torch.int64))
            for number, columns in enumerate([1, 5, 2, 64, 3, 1, 300, 7, 300, 2]):
                for mode in ("halo", "blocks"):
                    check_rounds(BlockStages(plan, mode), columns, number)


def check_rounds(stages: BlockStages, columns: int, number: int) -> None:
    plan, layout = stages.plan, stages.plan.row_layout
    rank, first = layout.group.rank, layout.offsets[layout.group.rank]
    x = torch.arange(SIZE * columns, dtype=torch.float32).view(SIZE, columns) + number
    own = x[first : first + layout.local_count]
    partial = {}
    for source, rows in stages.gather(own):
        expected = own if source == rank else x[rows_of(plan, source, stages.mode)]
        assert torch.equal(rows, expected)
        slots = plan.transport.reserve(0)
        if source != rank and slots is not None:
            assert rows.data_ptr() in [slot.data_ptr() for slot in slots]
        partial[source] = torch.full_like(rows, rank + 1.0)
    sums = stages.add_to_owners(x, lambda: partial[rank], partial.__getitem__)
    if stages.mode == "blocks" and all(all(n or p == q for q, n in enumerate(row))
                                       for p, row in enumerate(plan.demand)):  # fmt: skip
        world_size = layout.group.world_size
        assert torch.equal(sums, torch.full_like(own, world_size * (world_size + 1) / 2))


@each_place(1, 2, 3)
def test_rows_travel_by_copies(world_size: int, device_type: str) -> None:
    """On GPUs by copy engines."""
    run_ranks(check_copies, world_size, device=device_type)
