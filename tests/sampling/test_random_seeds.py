"""Seeds that are drawn from torch's generators."""

from __future__ import annotations

import torch

from peergraph.sampling import next_seed


def test_seeds_repeat_after_manual_seed() -> None:
    torch.manual_seed(5)
    seeds = [next_seed() for _ in range(4)]
    torch.manual_seed(5)
    assert [next_seed() for _ in range(4)] == seeds
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**63 - 1 for seed in seeds)


def test_a_generator_of_ones_own_leaves_the_default_alone() -> None:
    state = torch.get_rng_state()
    first = next_seed(torch.Generator().manual_seed(3))
    assert first == next_seed(torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), state)
