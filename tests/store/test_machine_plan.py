"""The choice between a store on each machine and rows that are split over machines."""

from __future__ import annotations

import pytest
import torch

from peergraph.store.placement.cost_model import HitRateCurve
from peergraph.store.placement.machine_plan import MachineMemory, choose_machine_plan


def memories(*pairs: tuple[int, int]) -> list[MachineMemory]:
    return [MachineMemory(f"machine {m}", *pair) for m, pair in enumerate(pairs)]


def test_what_fits_each_machine_is_replicated() -> None:
    fits = choose_machine_plan("auto", memories((100, 100), (90, 200)))
    assert fits.name == "replicate"
    large = choose_machine_plan("auto", memories((100, 300), (4096, 2048), (100, 101)))
    assert large.name == "shard"
    # The machine that has too little is named.
    assert str(large) == (
        "machines='shard': a whole store takes 4.0 KiB of machine 1, which may give 2.0 KiB"
    )
    one = choose_machine_plan("auto", memories((100, 1)))
    assert (one.name, one.reason) == ("replicate", "there is one machine")


@pytest.mark.parametrize("asked", ["replicate", "shard"])
def test_what_is_asked_for_is_chosen(asked: str) -> None:
    for pairs in ([(100, 1)] * 2, [(1, 100)] * 2):
        chosen = choose_machine_plan(asked, memories(*pairs))
        assert (chosen.name, chosen.reason) == (asked, "as asked for")


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="machines must be one of .* got 'both'"):
        choose_machine_plan("both", memories((1, 1)))
    with pytest.raises(ValueError, match="at least one machine"):
        choose_machine_plan("auto", [])


def test_distinct_rows_are_those_of_random_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    heat = 1 / torch.arange(1, 2001, dtype=torch.float64)
    curve = HitRateCurve.of(heat)
    # Of each batch: every row with a probability that is at most 1.
    scale = 1.0
    while float((heat * scale).clamp(max=1).sum()) < 300:
        scale *= 1.001
    probability = (heat * scale).clamp(max=1)
    for batches, first in ((1, 0), (1, 400), (4, 0), (4, 400), (8, 1999)):
        drawn = torch.rand(200, batches, 2000, generator=generator) < probability
        counted = float(drawn.any(1)[:, first:].sum(1).double().mean())
        assert curve.distinct_rows(300, batches, first) == pytest.approx(counted, rel=0.05, abs=1)
    assert curve.distinct_rows(300) == pytest.approx(300, rel=1e-6)
    # All rows are read; none are.
    assert HitRateCurve.uniform(50).distinct_rows(50, 3, 20) == pytest.approx(30)
    assert HitRateCurve.uniform(50).distinct_rows(0, 3) == 0
    assert HitRateCurve.of(torch.zeros(0)).distinct_rows(5) == 0
