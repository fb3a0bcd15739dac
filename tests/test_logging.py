"""What Peergraph logs, and that it is quiet unless a program sets up logging."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
import torch

from peergraph.fullgraph import FullGraph
from peergraph.integration import note_fallback
from peergraph.memory import Group
from tests.store.graphs import build, homogeneous_source, random_coo


def messages(records: list[logging.LogRecord], logger: str) -> list[str]:
    return [record.getMessage() for record in records if record.name == logger]


def test_nothing_is_printed_by_default() -> None:
    handlers = logging.getLogger("peergraph").handlers
    assert [type(handler) for handler in handlers] == [logging.NullHandler]
    assert logging.getLogger("peergraph").level == logging.NOTSET


def test_plans_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "peergraph")
    with build(homogeneous_source(), "host", device="cpu") as store:
        [line] = messages(caplog.records, "peergraph.store.build.build_store")
        assert line == f"store over 1 ranks on cpu: {store.plan}"
    graph = FullGraph.build(Group.current("cpu"), 40, random_coo(40, 40, 100))
    [line] = messages(caplog.records, "peergraph.fullgraph.graph")
    assert line == f"full graph, nodes ordered by {graph.order.name}: {graph.plan}"


def test_stages_are_logged_with_their_rates(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "peergraph")
    with build(homogeneous_source(), "host", device="cpu", progress=True) as store:
        store.save(tmp_path / "graph")
    lines = messages(caplog.records, "peergraph.progress")
    for what, rate in (
        ("count edges", r"million edges/s"),
        ("sort edges of _N-_E-_N", r"million edges/s"),
        ("load _N.x", r"GB/s"),
        ("save node0.table0.npy", r"GB/s"),
    ):
        pattern = rf"{re.escape(what)}: \d+\.\d+ s, \d+\.\d+ {rate}"
        assert any(re.fullmatch(pattern, line) for line in lines), (what, lines)
    assert any(re.fullmatch(r"allocate _N\.x: \d+\.\d+ s", line) for line in lines)
    bars = capfd.readouterr().err
    assert "count edges: 100%" in bars
    assert " edges/s" in bars
    assert "allocate" not in bars


def test_a_fallback_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    layer = torch.nn.Linear(1, 1)
    note_fallback(layer, "forward: PyG, nobody listens")
    caplog.set_level(logging.INFO, "peergraph")
    for _ in range(3):
        note_fallback(layer, "forward: PyG, hooks")
    assert messages(caplog.records, "peergraph.integration.explain_log") == [
        "Linear: forward: PyG, hooks"
    ]
