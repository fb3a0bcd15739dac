"""Stores that several ranks save together: the files of one rank, to the bit."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from peergraph.errors import PeerLostError
from peergraph.memory import Group
from peergraph.store import EdgeSource, GraphSource, Store
from peergraph.store.disk import manifest, saved_array, shared_file
from peergraph.testing import run_ranks
from tests.multirank.lost_ranks import check_named
from tests.named_case import named_case
from tests.store.graphs import random_coo

LONG_S = 100.0


def _source() -> GraphSource:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(301, 20, generator=generator)
    return GraphSource(
        {"a": 301, "b": 40},
        {
            ("a", "to", "b"): EdgeSource(coo=random_coo(301, 40, 2000, 1)),
            ("b", "to", "a"): EdgeSource(coo=random_coo(40, 301, 1500, 2)),
            ("a", "no", "a"): EdgeSource(coo=torch.empty(2, 0, dtype=torch.int64)),
        },
        {"a": {"x": x, "narrow": x, "none": x[:, :0]}, "b": {"wide": torch.ones(40, 900)}},
        {("a", "to", "b"): {"w": torch.arange(2000)}},
    )


def _save(folder: str, device: str, block_bytes: int) -> None:
    for module in (manifest, saved_array, shared_file):
        module.BLOCK_BYTES = block_bytes
    group = Group.current(device=device)
    options: dict[str, Any] = {"plan": "sharded", "storage": {"a": {"narrow": "int8"}}}
    source = _source()
    local_source = source if group.rank == 0 else None
    with Store.build(local_source, group=group, **options) as store:
        store.save(folder)
    with Store.load(folder, group=group, plan="host") as again:
        for node_type, tables in source.node_tables.items():
            for name, rows in tables.items():
                error = (again.node_table(name, node_type).read() - rows).abs()
                assert error.numel() == 0 or error.max() <= 0.02 * (name == "narrow")
        for edge_type, edges in source.edges.items():
            assert edges.coo is not None
            assert torch.equal(again.edge_index(edge_type), edges.coo)


def _check(tmp_path: Path, device: str, worlds: list[int]) -> None:
    for block_bytes in (200, 4096, 4 << 20):
        expected: dict[str, bytes] = {}
        for world in worlds:
            folder = tmp_path / f"{block_bytes} {world}"
            run_ranks(_save, world, str(folder), device, block_bytes, device=device)
            files = {path.name: path.read_bytes() for path in folder.iterdir()}
            expected = expected or files
            with named_case(block_bytes, world):
                assert files == expected


def test_the_files_are_the_same_for_any_number_of_ranks(tmp_path: Path) -> None:
    _check(tmp_path, "cpu", [1, 2, 3])


@pytest.mark.parametrize("world", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (1, 2, 4)])
def test_the_files_are_the_same_on_gpus(tmp_path: Path, world: int) -> None:
    _check(tmp_path, "cuda", sorted({1, world}))


def _die_while_saving(folder: str, victim: int, interrupt: bool) -> tuple[str, float]:
    shared_file.BLOCK_BYTES = 200
    group = Group.current(device="cpu", timeout=LONG_S)
    store = Store.build(_source() if group.rank == 0 else None, plan="sharded", group=group)
    real, calls = shared_file.write_block, []

    def dying(*arguments: Any) -> int:
        calls.append(1)
        if group.rank == victim and len(calls) == 9:
            os.kill(os.getpid(), signal.SIGINT if interrupt else signal.SIGKILL)
            time.sleep(0.2)
        return real(*arguments)

    shared_file.write_block = dying
    start = time.monotonic()
    try:
        store.save(folder)
    except PeerLostError as error:
        return str(error), time.monotonic() - start
    except KeyboardInterrupt:
        raise SystemExit(3) from None
    raise AssertionError("no rank was lost")


@pytest.mark.parametrize("interrupt", [False, True], ids=["killed", "Ctrl-C"])
def test_a_rank_that_ends_while_saving_is_named(tmp_path: Path, interrupt: bool) -> None:
    arguments = str(tmp_path / "graph"), 1, interrupt
    results = run_ranks(_die_while_saving, 3, *arguments, may_die=[1])
    check_named(results, 1, LONG_S / 2)
    assert list(tmp_path.iterdir()) == []
