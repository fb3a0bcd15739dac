"""The choice between a store on each machine and rows that are split over machines."""

from __future__ import annotations

import pytest

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
