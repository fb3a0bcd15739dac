"""Topologies: what they say of links, subsets, masks, widths, JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from benchmarks.placing.machines import MACHINES, machine

from peergraph.memory.device.default_machine import WorkRates
from peergraph.memory.topology.rates import Rates
from peergraph.memory.topology.topology import Topology
from tests.named_case import named_cases


def two(link: float = 50.0, host: float = 10.0) -> Topology:
    return Topology.from_matrix([[900, link], [link, 900]], host, memory=16)


def with_rows() -> Topology:
    """Random rows of 64 bytes at 8 (own), 4 (peer), 2 (host), of 256 bytes at 16, 8, 6."""
    narrow = Rates(((8.0, 4.0), (4.0, 8.0)), (4.0, 4.0), (2.0, 2.0))
    wide = Rates(((16.0, 8.0), (8.0, 16.0)), (8.0, 8.0), (6.0, 6.0))
    base = two()
    return Topology("t", base.bulk, base.latency, base.memory, 0, ((64, narrow), (256, wide)))


def test_dgx1_is_the_cube_mesh_of_figure_7() -> None:
    topology = machine("dgx1")
    assert [topology.neighbors(g) for g in range(8)] == [
        (1, 2, 3, 6),
        (0, 2, 3, 7),
        (0, 1, 3, 4),
        (0, 1, 2, 5),
        (2, 5, 6, 7),
        (3, 4, 6, 7),
        (0, 4, 5, 7),
        (1, 4, 5, 6),
    ]
    # Six links of 25 GB/s on every V100.
    assert topology.bulk.ingress == (150e9,) * 8
    assert topology.bulk.bandwidth == tuple(zip(*topology.bulk.bandwidth, strict=True))
    assert not topology.is_fully_linked


@pytest.mark.parametrize("name", MACHINES)
def test_machines(name: str) -> None:
    topology = machine(name)
    assert Topology.from_json(topology.to_json()) == topology
    text = str(topology)
    assert f"GPU {topology.num_gpus - 1}" in text
    assert topology.is_fully_linked == name.startswith(("full", "single", "dgx1-clique"))


def test_subset_renumbers() -> None:
    ring = machine("dgx1").subset((0, 1, 7, 6))
    assert [ring.neighbors(g) for g in range(4)] == [(1, 3), (0, 2), (1, 3), (0, 2)]
    assert ring.bulk.bandwidth[0][3] == 50e9  # GPU 0 and GPU 6
    assert ring.bulk.ingress[2] == 75e9  # GPU 7: one link to 6, two to 1
    assert machine("dgx1-5").neighbors(4) == (2,)


def test_host_reads_and_caches() -> None:
    timed = replace(machine("full4"), host_reads=(1e6, 2e6, 3e6, 4e6), caches=(10, 20, 30, 40))
    assert Topology.from_json(timed.to_json()) == timed
    part = timed.subset([3, 1]).masked([(0, 1)])
    assert (part.host_reads, part.caches) == ((4e6, 2e6), (40, 20))
    assert machine("full4").subset([3, 1]).host_reads == ()
    assert "1.0 M reads/s" in str(timed)
    with pytest.raises(ValueError, match="caches must be empty or have 4 entries, got 1"):
        replace(timed, caches=(1,))
    with pytest.raises(ValueError, match="host_reads must be positive"):
        replace(timed, host_reads=(1e6, 2e6, 0.0, 4e6))


def test_rows_that_cpu_threads_bring() -> None:
    staged = ((64, (10.0, 20.0)), (512, (40.0, 80.0)))
    timed = replace(two(), staged=staged)
    assert Topology.from_json(timed.to_json()) == timed
    assert timed.subset([1]).staged == ((64, (20.0,)), (512, (80.0,)))
    results = {width: timed.staged_rates(width) for width in (32, 64, 511, 512, 4096)}
    assert list(results.values()) == [(5, 10), (10, 20), (10, 20), (40, 80), (40, 80)]
    assert two().staged_rates(512) is None
    with pytest.raises(ValueError, match="staged must have rates of 2 GPUs"):
        replace(two(), staged=((64, (10.0,)),))


def test_mask_takes_links_away_in_both_directions() -> None:
    full = machine("full4")
    ring = full.masked([(0, 2), (3, 1)])
    assert [ring.neighbors(g) for g in range(4)] == [(1, 3), (0, 2), (1, 3), (0, 2)]
    # A switch still gives what one pair has.
    assert ring.bulk.ingress == full.bulk.ingress
    alone = full.masked([(0, 1), (0, 2), (0, 3)])
    assert alone.neighbors(0) == ()
    assert alone.bulk.ingress[0] == 0
    assert full.masked([]) == full


def test_masks_and_subsets_reach_the_rows() -> None:
    masked = with_rows().masked([(0, 1)])
    assert all(rates.bandwidth[0][1] == 0 for _, rates in masked.rows)
    assert masked.rates(128).ingress == (0.0, 0.0)
    assert with_rows().subset([1]).rates(64).bandwidth == ((8.0,),)


@named_cases(
    ("row_bytes", "host"),
    # 96 bytes are at 29 % of the way, by logarithms.
    [(16, 0.5), (64, 2.0), (96, 3.1699250), (128, 4.0), (256, 6.0), (4096, 6.0)],
)
def test_rates_between_widths(row_bytes: int, host: float) -> None:
    assert with_rows().rates(row_bytes).host == pytest.approx((host, host))


def test_rates_without_rows_are_the_bulk_ones() -> None:
    assert two().rates(4) == two().bulk


def test_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match="bandwidth must be square"):
        Topology.from_matrix([[1, 2], [1]], 1, memory=1)
    with pytest.raises(ValueError, match=r"bandwidth\[1\]\[1\]"):
        Topology.from_matrix([[1, 2], [1, 0]], 1, memory=1)
    with pytest.raises(ValueError, match="not negative"):
        two(link=-1)
    with pytest.raises(ValueError, match="host: every GPU"):
        two(host=0)
    with pytest.raises(ValueError, match="host must have 2"):
        Topology.from_matrix([[1, 2], [1, 3]], [1], memory=1)
    with pytest.raises(ValueError, match="memory must have 2"):
        Topology.from_matrix([[1, 2], [1, 3]], 1, memory=[1])
    with pytest.raises(ValueError, match="gpus must name"):
        two().subset([])
    with pytest.raises(ValueError, match="none twice"):
        two().subset([1, 1])
    with pytest.raises(ValueError, match="GPU 2 is not one of"):
        two().subset([2])
    with pytest.raises(ValueError, match="GPU -1"):
        two().masked([(0, -1)])
    with pytest.raises(ValueError, match=r"\(1, 1\) is no link"):
        two().masked([(1, 1)])
    with pytest.raises(ValueError, match="row_bytes"):
        two().rates(0)
    with pytest.raises(ValueError, match="not a topology"):
        Topology.from_json("{}")
    with pytest.raises(ValueError, match="not a topology"):
        Topology.from_json("nonsense")


def test_work_rates() -> None:
    measured = replace(two(), work=WorkRates(files=7e9, narrow_over_links=((8, 0.5),)))
    assert Topology.from_json(measured.to_json()) == measured
    assert measured.masked([(0, 1)]).subset([1]).work == measured.work
    # A file that was written before has the defaults.
    fields = json.loads(measured.to_json())
    del fields["work"]
    assert Topology.from_json(json.dumps(fields)).work == WorkRates()
    with pytest.raises(ValueError, match="files must be positive and finite"):
        WorkRates(files=0.0)
    fields["work"] = {"files": 1.0}
    assert Topology.from_json(json.dumps(fields)).work == WorkRates(files=1.0)
    fields["work"] = {"file": 1.0}
    with pytest.raises(ValueError, match="'file'"):
        Topology.from_json(json.dumps(fields))


def test_default_figures() -> None:
    four, ranks = Topology.default(4), Topology.default(2, gpus=False)
    assert four.is_fully_linked
    assert four.bulk.ingress == (four.bulk.bandwidth[0][1],) * 4
    assert Topology.default(1).bulk.ingress == (0.0,)
    assert (ranks.num_gpus, ranks.memory) == (2, (0, 0))
