"""Ranks that call different methods of a store, or with different arguments, or break them off."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from peergraph.errors import PeerLostError
from peergraph.memory import Group, SharedRegion, Table, Tiers
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Store
from peergraph.testing import run_ranks
from tests.multirank.processes import interrupt_when_it_waits

LONG_S = 100.0


def _store(group: Group) -> Store:
    edges = EdgeSource(torch.tensor([[0, 1], [1, 2]]), None)
    source = GraphSource({NODE: 3}, {EDGE: edges}, {NODE: {"x": torch.rand(3, 4)}}, {})
    return Store.build(source if group.rank == 0 else None, group=group, plan="host")


def _saves_and_closes(folder: str) -> tuple[str, bool]:
    group = Group.current(timeout=LONG_S)
    store = _store(group)
    start = time.monotonic()
    with pytest.raises(PeerLostError) as caught:
        store.close() if group.rank == 1 else store.save(folder)
    return str(caught.value), time.monotonic() - start < LONG_S / 2


def test_saving_on_one_rank_and_closing_on_another(tmp_path: Path) -> None:
    for message, soon in run_ranks(_saves_and_closes, 2, str(tmp_path / "store")):
        assert soon
        assert message == (
            "the ranks are in different collectives: rank 0 called Store.save (call 2), "
            "rank 1 called Store.close (call 2)"
        )
    assert not list(tmp_path.iterdir())


def _differs(what: str, folder: str) -> str:
    group = Group.current(timeout=60)
    one = group.rank == 1
    calls = {
        "order": lambda: Table.create(
            (4, 1),
            torch.float32,
            Tiers(host=4),
            group,
            order=torch.arange(4) if one else None,
        ),
        "region": lambda: SharedRegion.create(8, group, "cpu", folder if one else None),
        "plan": lambda: Store.build(None, group=group, plan="host" if one else "replicated"),
        "ratios": lambda: Store.build(None, group=group, graph_ratio=0.5 if one else None),
        "folder": lambda: _store(group).save(f"{folder}/{group.rank}"),
        "name": lambda: _store(group).add_node_table("b" if one else "a", torch.rand(3, 1)),
    }
    with pytest.raises(ValueError, match="the ranks disagree about") as caught:
        calls[what]()
    group.barrier()
    return str(caught.value)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("order", "order: False on rank 0, True on rank 1"),
        ("region", "folder: False on rank 0, True on rank 1"),
        ("plan", "plan: 'replicated' on rank 0, 'host' on rank 1"),
        ("ratios", "ratios: ShardRatios("),
        ("folder", "folder: "),
        ("name", "name: 'a' on rank 0, 'b' on rank 1"),
    ],
)
def test_arguments_that_differ(tmp_path: Path, what: str, message: str) -> None:
    for text in run_ranks(_differs, 2, what, str(tmp_path)):
        assert text.startswith(f"the ranks disagree about {message}")


def _ctrl_c_in_close() -> bool:
    group = Group.current(timeout=LONG_S, watch=False)
    pids = group.all_gather(os.getpid())
    store = _store(group)
    start = time.monotonic()
    if group.rank == 0:
        with pytest.raises(KeyboardInterrupt):
            store.close()
    else:
        interrupt_when_it_waits(group, pids[0])
        with pytest.raises(PeerLostError, match=r"rank 0 broke off Store.close \(call 3\): Keyb"):
            store.close()
    return time.monotonic() - start < LONG_S / 2


def test_ctrl_c_ends_close_at_once() -> None:
    assert run_ranks(_ctrl_c_in_close, 2) == [True, True]
