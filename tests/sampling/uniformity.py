"""Tests of distributions that fail by chance once in thousands of runs."""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2

# Fixed seeds, so a test passes always or never; a fair sampler misses this once in 10,000.
LEAST_P = 1e-4


def assert_uniform(outcomes: np.ndarray, num_outcomes: int) -> None:
    """Chi-square test of rows that should be equally likely among `num_outcomes` different ones."""
    _, counts = np.unique(outcomes, axis=0, return_counts=True)
    assert counts.size <= num_outcomes
    expected = outcomes.shape[0] / num_outcomes
    missing = num_outcomes - counts.size
    statistic = ((counts - expected) ** 2 / expected).sum() + missing * expected
    assert chi2.sf(statistic, num_outcomes - 1) > LEAST_P


def assert_distributed(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Chi-square test of counts of outcomes that have the given probabilities, each above 0."""
    expected = counts.sum() * probabilities / probabilities.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert chi2.sf(statistic, counts.size - 1) > LEAST_P
