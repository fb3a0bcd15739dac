"""Hooks, compilers and transforms of autograd on partitioned graphs: right, or a named error."""

from __future__ import annotations

import pytest

from .full_graph import autograd_cases
from .full_graph.ranks import check_cases


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [1, 2])
def test_autograd(ranks: int) -> None:
    check_cases(autograd_cases.__name__, autograd_cases.CASES, ranks)
