"""A rank that ends in the middle of full-graph training: the others name it within seconds."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import pytest
import torch

from peergraph.aggregate import layers
from peergraph.errors import PeerLostError
from peergraph.fullgraph import FullGraph, distribute
from peergraph.memory import Group, SharedRegion
from peergraph.testing import run_ranks
from tests.multirank.gpu_memory import check_freed
from tests.multirank.lost_ranks import check_named

# Whatever waits longer than this has not noticed.
LONG_S = 100.0
NODES, EDGES, COLUMNS, SPARE_EPOCHS = 3000, 40_000, 32, 5


def _end(how: str) -> None:
    """Ends this process as `how` says, once the others wait for it."""
    time.sleep(1.0)
    if how == "exception":
        try:
            raise LookupError("on purpose")
        except LookupError:
            sys.exit(1)  # as torch.multiprocessing.spawn does
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(LONG_S)


def _train(victim: int, how: str, mode: str, in_backward: bool, ballast: int = 0) -> Any:
    """Returns the error that ends the training, and after how many seconds."""
    group = Group.current(timeout=LONG_S)
    if ballast:
        SharedRegion.create(ballast, group)
    random = torch.Generator().manual_seed(3)
    edges = torch.randint(NODES, (2, EDGES), generator=random)
    graph = FullGraph.build(group, NODES, edges, order="random")
    (structure,) = graph.structures.values()
    structure.mode = mode
    x = distribute(torch.randn(NODES, COLUMNS, generator=random), structure.source_layout)
    weights = [
        torch.randn(COLUMNS, COLUMNS, generator=random).to(group.device).requires_grad_()
        for _ in range(3)
    ]

    def end_here(_: object = None) -> None:
        if group.rank == victim and epoch == SPARE_EPOCHS:
            _end(how)

    start = time.monotonic()
    try:
        for epoch in range(100_000):
            out: Any = x
            for number, weight in enumerate(weights):
                out = layers.sage(structure, out, weight).tanh()
                if number == 1:
                    if in_backward:
                        out.register_hook(end_here)
                    else:
                        end_here()
            loss = (out * out).mean()
            loss.backward()
            if epoch % 4 == 0:
                loss.item()
    except PeerLostError as error:
        return str(error), time.monotonic() - start
    raise AssertionError("no rank was lost")


@pytest.mark.parametrize(
    ("ranks", "victim", "how", "mode", "in_backward", "transport"),
    [
        (2, 0, "SIGKILL", "halo", True, "copy"),
        (3, 1, "SIGINT", "blocks", False, "copy"),
        (3, 2, "exception", "halo", False, "torch"),
        (2, 1, "exception", "in_kernel", False, "torch"),
    ],
)
def test_training_ends(
    ranks: int,
    victim: int,
    how: str,
    mode: str,
    in_backward: bool,
    transport: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PEERGRAPH_TRANSPORT", transport)
    results = run_ranks(_train, ranks, victim, how, mode, in_backward, may_die=[victim])
    check_named(results, victim, LONG_S / 4)


def _check_on_gpus(
    ranks: int, victim: int, how: str, mode: str, in_backward: bool, transport: str
) -> None:
    torch.cuda.init()
    before = [torch.cuda.mem_get_info(i)[0] for i in range(ranks)]
    # So much that whatever else runs on the GPUs meanwhile makes no difference.
    ballast = min(before) // 16  # many tests do this at once
    arguments = (victim, how, mode, in_backward, ballast)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEERGRAPH_TRANSPORT", transport)
        results = run_ranks(_train, ranks, *arguments, device="cuda", may_die=[victim])
    check_named(results, victim, LONG_S / 4)
    for i, free in enumerate(before):
        check_freed(i, free - ballast + 1)


@pytest.mark.gpus(2)
@pytest.mark.parametrize(
    ("victim", "how", "mode", "in_backward", "transport"),
    [
        (0, "SIGKILL", "blocks", False, "copy"),
        (1, "SIGKILL", "halo", True, "copy"),
        (1, "exception", "blocks", False, "copy"),
        (0, "SIGINT", "halo", False, "copy"),
        (0, "SIGKILL", "in_kernel", False, "copy"),
        (1, "exception", "blocks", True, "torch"),
    ],
)
def test_training_on_two_gpus_ends(
    victim: int, how: str, mode: str, in_backward: bool, transport: str
) -> None:
    _check_on_gpus(2, victim, how, mode, in_backward, transport)


@pytest.mark.gpus(4)
@pytest.mark.parametrize(("how", "mode"), [("SIGKILL", "blocks"), ("exception", "halo")])
def test_training_on_four_gpus_ends(how: str, mode: str) -> None:
    _check_on_gpus(4, 2, how, mode, in_backward=how == "exception", transport="copy")
