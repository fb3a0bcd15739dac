"""Memory of the host: rows of nodes and structure, and little else; nothing is left behind."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from peergraph.fullgraph import FullGraph, named_model
from peergraph.memory import Group
from peergraph.store import EDGE
from peergraph.testing import run_ranks

NODES, EDGES, WIDTH = 4000, 60_000, 64
ONE_SET = NODES * WIDTH * 4


def bytes_of_tensors() -> int:
    """Bytes of all tensors on the CPU, each memory counted once."""
    gc.collect()
    sizes: dict[int, int] = {}
    for value in gc.get_objects():
        if type(value) is torch.Tensor and value.device.type == "cpu":
            storage = value.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def test_host_memory_is_at_most_a_tenth_above_rows_and_structure() -> None:
    """On a CPU rank all tensors count as host memory, also those of the device tier."""
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(NODES, (2, EDGES), generator=generator)
    x = torch.randn(NODES, WIDTH, generator=generator)
    before = bytes_of_tensors()
    graph = FullGraph.build(
        Group(0, 1, torch.device("cpu"), 60.0), NODES, edges, order="original", offload=True,
        num_chunks=8, model=named_model([WIDTH, WIDTH, WIDTH, 8]), memory_budget=1 << 24,
    )  # fmt: skip
    assert graph.offloaded is not None
    stores = graph.offloaded.allocator
    stores.use["device"].budget = int(2.2 * ONE_SET)
    stores.sequential_device_bytes = 0
    rows = graph.offloaded.rows(x, graph.node_layouts["_N"], "features")
    mask = graph.node_rows(torch.arange(NODES) % 50 == 0)
    layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)])
    for _ in range(2):
        h = rows
        for number, layer in enumerate(layers):
            sums = graph.structures[EDGE].spmm("copy_u", "sum", torch.relu(h) if number else h)
            h = layer(sums)
        h[mask].square().mean().backward()
        del h, sums
    num_bytes = bytes_of_tensors() - before
    stored = sum(use.used + use.spare for use in stores.use.values())
    # The features stay in the user's tensor. Stored are their sum, and the rows that two layers
    # need at the same time: the next epoch uses that memory again.
    assert stored < 5.1 * ONE_SET
    assert stores.use["host"].used == ONE_SET
    # Sources in both directions, offsets, and the user's numbers of edges and of nodes.
    structure = 2 * 4 * EDGES + 2 * 8 * EDGES + 4 * 8 * NODES
    assert num_bytes < 1.1 * (stored + structure)


def check_training(folder: str, ends: str) -> None:
    """Trains with rows in files, of which rank 1 dies or is interrupted in a pass."""
    group = Group.current()
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(200, (2, 900), generator=generator)
    graph = FullGraph.build(
        group, 200, edges, order="random", offload=True, num_chunks=4, model=named_model([8, 8, 4]),
        memory_budget=1 << 20, host_memory=0, folder=folder,
    )  # fmt: skip
    assert graph.offloaded is not None
    stores = graph.offloaded.allocator
    stores.use["device"].budget = stores.sequential_device_bytes = 0
    weight = torch.eye(8, requires_grad=True)
    rows = graph.offloaded.rows(torch.ones(200, 8), graph.node_layouts["_N"], "features")
    hidden = torch.relu(graph.structures[EDGE].spmm("copy_u", "sum", rows) @ weight)
    out = graph.structures[EDGE].spmm("copy_u", "sum", hidden)
    assert out.sum().item() > 0
    assert stores.use["file"].used > 0
    if group.rank == 1:
        os._exit(9) if ends == "dies" else os.kill(os.getpid(), 2)
    out.sum().backward()


@pytest.mark.parametrize("ends", ["dies", "is interrupted"])
def test_training_that_ends_leaves_no_files(ends: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="rank"):
        run_ranks(check_training, 2, str(tmp_path), ends)
    assert not list(tmp_path.iterdir())


def test_full_disk_in_training_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the system, and the graph can be used again once there is room."""
    edges = torch.randint(200, (2, 900), generator=torch.Generator().manual_seed(3))
    graph = FullGraph.build(
        Group(0, 1, torch.device("cpu"), 60.0), 200, edges, offload=True, num_chunks=4,
        model=named_model([8, 8, 4]), memory_budget=1 << 20, host_memory=0, folder=tmp_path,
    )  # fmt: skip
    assert graph.offloaded is not None
    stores = graph.offloaded.allocator
    stores.use["device"].budget = stores.sequential_device_bytes = 0
    rows = graph.offloaded.rows(torch.ones(200, 8), graph.node_layouts["_N"], "features")

    def refuse(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    def train() -> float:
        sums = graph.structures[EDGE].spmm("copy_u", "sum", rows)
        return float(graph.structures[EDGE].spmm("copy_u", "sum", torch.relu(sums)).sum())

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(OSError, match="bytes on disk cannot be had: No space left"):
            train()
    assert not list(tmp_path.iterdir())
    gc.collect()
    assert stores.use["file"].used == 0
    assert train() > 0
    assert not list(tmp_path.iterdir())


def test_memory_of_selections_is_freed() -> None:
    """Each step trains on another mask; what belongs to the masks of former steps is freed."""
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(400, (2, 6000), generator=generator)
    graph = FullGraph.build(
        Group(0, 1, torch.device("cpu"), 60.0), 400, edges, order="original", offload=True,
        num_chunks=3, model=named_model([8, 8, 8]), memory_budget=1 << 22,
    )  # fmt: skip
    assert graph.offloaded is not None
    rows = graph.offloaded.rows(torch.ones(400, 8), graph.node_layouts["_N"], "features")
    layer = nn.Linear(8, 8)
    num_bytes = []
    for step in range(30):
        mask = graph.node_rows(torch.rand(400, generator=generator) < 0.2)
        h = layer(rows)
        scores = graph.structures[EDGE].sddmm("add", h[:, 0], h[:, 1])
        weights = graph.structures[EDGE].edge_softmax(scores)
        out = graph.structures[EDGE].spmm("mul", "sum", h, weights)
        out[mask].square().mean().backward()
        del h, scores, weights, out, mask
        if step >= 19:  # the last selections are kept
            num_bytes.append(bytes_of_tensors())
    assert max(num_bytes) < 1.1 * min(num_bytes)  # masks differ in size
