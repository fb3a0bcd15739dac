"""Models of PyG on partitioned graphs: results, gradients and training equal PyG's in one process.

A launch of ranks goes through all cases of a module; the failure names each case that failed.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from peergraph.testing import run_ranks

from .full_graph import conv_cases, data_cases, model_cases, training_cases
from .full_graph.ranks import check_cases

RANKS = [1, 2, 3]


def chosen(cases: Iterable[str], ranks: int) -> list[str]:
    """Returns all cases for two ranks; every third for one, and others for three.

    Of three, two may have rows and one none, and each exchanges rows with several others. With
    PyG's layers and with Peergraph's every case runs on two ranks; else cases take turns.
    """
    return list(cases)[slice(None) if ranks == 2 else slice(ranks // 2, None, 3)]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", RANKS)
def test_layers(ranks: int) -> None:
    check_cases(conv_cases.__name__, chosen(conv_cases.CASES, ranks), ranks, both=ranks == 2)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", RANKS)
def test_models(ranks: int) -> None:
    check_cases(model_cases.__name__, chosen(model_cases.CASES, ranks), ranks, both=ranks == 2)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", RANKS)
def test_training(ranks: int) -> None:
    check_cases(training_cases.__name__, chosen(training_cases.CASES, ranks), ranks)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", RANKS)
def test_data(ranks: int) -> None:
    check_cases(data_cases.__name__, chosen(data_cases.CASES, ranks), ranks)


@pytest.mark.timeout(400)
def test_dropout_does_not_depend_on_the_number_of_ranks() -> None:
    one, three = (run_ranks(training_cases.dropout, ranks)[0] for ranks in (1, 3))
    assert three == pytest.approx(one, rel=1e-9)
