"""Options of the demo: what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peergraph_demo.options import DemoOptions
from tests.named_case import named_cases


@named_cases(
    ("changes", "message"),
    [
        ({"ranks": 0}, "--ranks must be at least 1, got 0"),
        ({"epochs": 0}, "--epochs must be at least 1"),
        ({"batch_size": -3}, "--batch-size must be at least 1"),
        ({"hidden": 0}, "--hidden must be at least 1"),
        ({"memory_budget": 0}, "--memory-budget must be at least 1"),
        ({"memory_budget": 9, "plan": "host"}, "--memory-budget is for --plan auto, not host"),
        ({"num_workers": -1}, "--num-workers must not be negative"),
        ({"num_workers": 1, "measure": True}, "--measure counts no reads of workers"),
        ({"full_graph": True, "measure": True}, "--full-graph has none"),
        ({"plan": "magic"}, "--plan must be one of auto, replicated, sharded, host, got 'magic'"),
        ({"fanouts": ()}, "--fanouts must be positive"),
        ({"fanouts": (5, 0)}, "got 5,0"),
        ({"dropout": 1.0}, r"--dropout must be in \[0, 1\)"),
        ({"lr": 0.0}, "--lr must be positive"),
        ({"lr": float("nan")}, "--lr must be positive"),
        ({"json": "/no/such/folder/out.json"}, "--json: there is no folder /no/such/folder"),
        ({"scale": 0.5}, "--scale is for --data products, not for --data code"),
        ({"scale": 2.0, "data": "products"}, "--scale must be from 0.0001 to 1"),
        ({"rebuild": True, "data": "a.npz"}, "--rebuild is for the code graph"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DemoOptions(**changes).check()


def test_accepted(tmp_path: Path) -> None:
    DemoOptions().check()
    DemoOptions(data="products", scale=0.01, fanouts=(-1, 2), memory_budget=1).check()
    DemoOptions(data="a.npz", json=str(tmp_path / "out.json")).check()


@pytest.mark.parametrize(
    ("given", "num_gpus", "expected"),
    [
        ({}, 0, ("cpu", 2)),
        ({}, 4, ("cuda", 4)),
        ({"ranks": 3}, 4, ("cuda", 3)),
        ({"device": "cpu"}, 4, ("cpu", 2)),
        ({"device": "cpu", "ranks": 5}, 0, ("cpu", 5)),
    ],
)
def test_device_and_ranks(
    given: dict[str, Any],
    num_gpus: int,
    expected: tuple[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert DemoOptions(**given).resolve(num_gpus) == expected


def test_too_few_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match=r"each of 1 ranks.* have 0"):
        DemoOptions(device="cuda").resolve(0)
    with pytest.raises(ValueError, match=r"each of 3 ranks.* have 2"):
        DemoOptions(ranks=3).resolve(2)


def test_torchrun_says_how_many_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert DemoOptions().resolve(2) == ("cuda", 4)
    assert DemoOptions(ranks=4).resolve(0) == ("cpu", 4)
    with pytest.raises(ValueError, match="--ranks 2, but torchrun started 4"):
        DemoOptions(ranks=2).resolve(0)


@pytest.mark.parametrize(
    ("num_train", "ranks", "epochs", "batch_size"),
    [(1_000_000, 4, 3, 1024), (49_000, 2, 3, 1024), (8_000, 2, 3, 250), (140, 2, 9, 16)],
)
def test_small_graphs_get_enough_steps(
    num_train: int, ranks: int, epochs: int, batch_size: int
) -> None:
    training = DemoOptions().training(num_train, ranks)
    assert (training.epochs, training.batch_size) == (epochs, batch_size)
    given = DemoOptions(epochs=1, batch_size=7).training(num_train, ranks)
    assert (given.epochs, given.batch_size) == (1, 7)
