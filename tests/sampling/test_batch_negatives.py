"""Negatives from a batch's destinations and from lists, against plain loops and distributions."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from peergraph.sampling import hard_negatives, in_batch_negatives


def test_in_batch_negatives_are_no_positives_of_the_batch(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(20, (200,), generator=generator).to(device)
    destination = torch.randint(300, (200,), generator=generator).to(device)
    got = in_batch_negatives(source, destination, 9, 5, num_nodes=300)
    assert got.source.equal(source[:, None].expand(200, 9))
    positives = set(zip(source.tolist(), destination.tolist(), strict=True))
    pairs = zip(got.source.flatten().tolist(), got.destination.flatten().tolist(), strict=True)
    assert positives.isdisjoint(pairs)
    assert set(got.destination.flatten().tolist()) <= set(destination.tolist())
    assert got.is_edge is None
    again = in_batch_negatives(source.cpu().int(), destination.cpu(), 9, 5, num_nodes=300)
    assert again.destination.equal(got.destination.cpu())
    other = in_batch_negatives(source, destination, 9, 6, num_nodes=300)
    assert not other.destination.equal(got.destination)


def test_in_batch_negatives_are_drawn_as_often_as_they_are_destinations() -> None:
    source = torch.arange(30)
    destination = torch.cat([torch.full((15,), 100), torch.full((10,), 101), torch.arange(5)])
    got = in_batch_negatives(source, destination, 4000, 1, num_nodes=200).destination
    # Positive 0 is (0, 100): 101 and the last five are left, by their 10 and 1 positives.
    counts = torch.bincount(got[0], minlength=200)[[101, 0, 1, 2, 3, 4]]
    assert int(counts.sum()) == 4000
    assert stats.chisquare(counts, 4000 * torch.tensor([10, 1, 1, 1, 1, 1]) / 15).pvalue > 1e-4


def test_batches_without_other_destinations() -> None:
    one = in_batch_negatives(torch.tensor([3]), torch.tensor([4]), 500, 2, num_nodes=7).destination
    assert set(one.flatten().tolist()) == set(range(7))
    same = in_batch_negatives(torch.tensor([3, 3]), torch.tensor([4, 4]), 500, 2, num_nodes=7)
    assert set(same.destination.flatten().tolist()) == set(range(7))
    none = torch.empty(0, dtype=torch.int64)
    assert in_batch_negatives(none, none, 3, 2, num_nodes=7).destination.shape == (0, 3)


def test_hard_negatives_are_candidates_of_the_source(device: torch.device) -> None:
    candidates = torch.tensor([[5, 6, 7], [8, -1, -1], [-1, -1, -1]], device=device)
    source = torch.tensor([0, 1, 2, 0], device=device)
    got = hard_negatives(candidates, source, 6000, 3, num_nodes=10)
    assert got.source.equal(source[:, None].expand(4, 6000))
    counts = torch.bincount(got.destination[0].cpu(), minlength=10)
    assert set(counts.nonzero().view(-1).tolist()) == {5, 6, 7}
    assert stats.chisquare(counts[5:8]).pvalue > 1e-4
    assert got.destination[1].eq(8).all()
    assert stats.chisquare(torch.bincount(got.destination[2].cpu(), minlength=10)).pvalue > 1e-4
    again = hard_negatives(candidates.cpu(), source.cpu(), 6000, 3, num_nodes=10)
    assert again.destination.equal(got.destination.cpu())


def test_errors() -> None:
    ids, candidates = torch.tensor([0, 1]), torch.zeros((1, 3), dtype=torch.int64)
    with pytest.raises(ValueError, match="destination: expected 2"):
        in_batch_negatives(ids, ids[:1], 3, 0, num_nodes=4)
    with pytest.raises(ValueError, match="amount: expected"):
        in_batch_negatives(ids, ids, 0, 0, num_nodes=4)
    with pytest.raises(TypeError, match="source: expected"):
        in_batch_negatives(ids.float(), ids, 1, 0, num_nodes=4)
    with pytest.raises(IndexError, match="source: 1 is out of range for 1 candidates"):
        hard_negatives(candidates, ids, 1, 0, num_nodes=4)
    with pytest.raises(ValueError, match="candidates: expected int64"):
        hard_negatives(candidates.int(), ids, 1, 0, num_nodes=4)
