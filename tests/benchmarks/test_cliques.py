"""Placement by cliques, which benchmarks compare the solver with: XGNN 6.6's numbers."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from benchmarks.placing.machines import MACHINES, machine
from tests.store.test_cost_model import load, power_law, rows
from tests.store.test_partition_solver import assert_valid

from peergraph.memory.table.partitions import Partitions
from peergraph.memory.topology.topology import Topology
from peergraph.store.placement.cost_model import predict
from peergraph.store.placement.partition_solver import solve
from peergraph.store.placement.policies import POLICIES
from peergraph.store.placement.tier_choice import choose_tiers

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def cliques(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("placing.cliques")
    for name in ("clique", "clique-opt"):
        POLICIES.pop(name, None)


@pytest.mark.parametrize("name", MACHINES)
def test_every_gpu_reads_every_partition(cliques: ModuleType, name: str) -> None:
    topology = machine(name)
    assert_valid(cliques.place_by_cliques(topology), topology)


def test_cliques_of_the_paper(cliques: ModuleType) -> None:
    equal_cliques = cliques.equal_cliques
    assert equal_cliques(machine("dgx1")) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert equal_cliques(machine("dgx1-6")) == [(0, 1), (2, 3), (4, 5)]
    assert [len(c) for c in equal_cliques(machine("dgx1-ring4"))] == [2, 2]
    assert len(equal_cliques(machine("dgx1-5"))) == 5
    assert cliques.place_by_cliques(machine("dgx1-5")).copies == 5


def test_links_of_one_direction_make_no_clique(cliques: ModuleType) -> None:
    topology = Topology.from_matrix([[900, 50], [0, 900]], 10, memory=1)
    assert cliques.equal_cliques(topology) == [(0,), (1,)]


def test_solver_and_cliques_agree_where_all_are_linked(cliques: ModuleType) -> None:
    topology = machine("full4")
    placed = cliques.place_by_cliques(topology)
    assert solve(topology).stored == placed.stored
    assert solve(topology).source == placed.source


def test_cliques_keep_less_than_the_solver(cliques: ModuleType) -> None:
    """XGNN 6.6, six GPUs: the solver stores 2 of 6 partitions on a GPU, cliques of two 3 of 6; so
    the solver keeps half as much again on the GPUs.
    """
    topology = machine("dgx1-6")
    one = load(rows("x", 600, 4), torch.ones(600), 4)

    def on_gpus(partitions: Partitions) -> int:
        return choose_tiers([one], topology, partitions, 400, replicate=False)[0].sharded

    placed = cliques.place_by_cliques(topology)
    assert placed.stored_share == pytest.approx(3 / 6)
    assert on_gpus(solve(topology)) == 300
    assert on_gpus(placed) == 200


def test_the_solver_reads_less_from_the_host(cliques: ModuleType) -> None:
    topology = machine("dgx1-6")
    one = load(rows("x", 600, 4), power_law(600), 4)

    def host_share(partitions: Partitions) -> float:
        tiers = choose_tiers([one], topology, partitions, 400, replicate=False)[0]
        return predict(one, tiers, partitions).hits[2]

    assert host_share(solve(topology)) < host_share(cliques.place_by_cliques(topology))
