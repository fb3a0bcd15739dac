"""Plans and topologies from JSON that is none of theirs: an error that says where and what."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.placing.machines import machine

from peergraph.cli.__main__ import main
from peergraph.memory.topology.topology import Topology
from peergraph.store import Plan, Store
from tests.named_case import named_case
from tests.store.graphs import homogeneous_source

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    with Store.build(homogeneous_source(), plan="host", device="cpu") as store:
        return store.plan.to_dict()


MALFORMED_PLANS = [
    (lambda p: p.pop("name"), "has no key 'name'"),
    (lambda p: p.update(more=1), "unknown key 'more'"),
    (lambda p: p.update(world_size=0), "world_size must be at least 1, got 0"),
    (lambda p: p.update(world_size=True), "world_size must be an integer.*got True"),
    (lambda p: p.update(memory_budget="1"), "memory_budget must be an integer.*got '1'"),
    (lambda p: p.update(placements=3), "placements must be a list, got 3"),
    (lambda p: p.update(placements=[[]]), r"placements\[0\] must be an object"),
    (lambda p: p["placements"][0].pop("tiers"), r"placements\[0\] has no key 'tiers'"),
    (lambda p: p["placements"][0]["tiers"].update(host=-1), r"tiers.host must be an integer"),
    (lambda p: p["placements"][0]["tiers"].update(moon=1), "unknown key 'moon'"),
    (lambda p: p["placements"][0].update(bytes_host=1.5), "bytes_host must be an integer"),
    (lambda p: p.update(predictions=[{"kind": "ids"}]), r"predictions\[0\] has no key 'hits'"),
    (lambda p: p.update(partitions={"policy": "x"}), "partitions has no key 'stored'"),
    (
        lambda p: p.update(partitions={"policy": "x", "stored": [["a"]], "source": [[0]]}),
        "partitions.stored must be a list of lists of integers",
    ),
]


def test_malformed_plans(plan: dict[str, Any]) -> None:
    for change, match in MALFORMED_PLANS:
        with named_case(match):
            assert Plan.from_dict(plan).to_dict() == plan
            values = copy.deepcopy(plan)
            change(values)
            with pytest.raises(ValueError, match=f"not a plan: .*{match}"):
                Plan.from_dict(values)


def test_plans_of_another_kind() -> None:
    for values in (None, [], "plan", 3):
        with named_case(values), pytest.raises(ValueError, match="not a plan must be an object"):
            Plan.from_dict(values)


MALFORMED_TOPOLOGIES = [
    (lambda t: t.pop("memory"), "has no key 'memory'"),
    (lambda t: t.update(memory=["a", "b"]), "memory must be a list of finite numbers"),
    (lambda t: t.update(host_memory=None), "host_memory must be a finite number, got null"),
    (lambda t: t.update(latency=[0, 0]), "latency must be a list of lists of finite numbers"),
    (lambda t: t.update(bulk=[]), "bulk must be an object"),
    (lambda t: t["bulk"].update(host=["x"]), "bulk.host must be a list of finite numbers"),
    (lambda t: t["bulk"].update(host=[float("nan")] * 2), "bulk.host must be a list of finite"),
    (lambda t: t.update(rows=[[1]]), "rows must be a list of lists of 2"),
    (lambda t: t.update(rows=[[1, 2]]), r"rows\[0\].1 must be an object, got 2"),
    (lambda t: t.update(staged=[["a", [1, 1]]]), r"staged\[0\].0 must be an integer"),
    (lambda t: t.update(name=3), "name must be a string"),
]


def test_malformed_topologies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for change, match in MALFORMED_TOPOLOGIES:
        with named_case(match):
            values = json.loads(machine("full2").to_json())
            change(values)
            with pytest.raises(ValueError, match=f"not a topology: .*{match}"):
                Topology.from_json(json.dumps(values))
            file = tmp_path / "machine.json"
            file.write_text(json.dumps(values))
            assert main(["plan", "--topology", str(file)]) == 2
            printed = capsys.readouterr().err
            assert f"{file}: not a topology" in printed


def test_texts_that_are_no_topology() -> None:
    for text in ("", "[" * 100_000, "1" * 5000, '{"name": "a", "name": "b"}'):
        with named_case(text[:30]), pytest.raises(ValueError, match="not a topology"):
            Topology.from_json(text)
