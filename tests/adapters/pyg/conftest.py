"""Fixtures of the tests of PyG's adapter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from peergraph_pyg import compat


@pytest.fixture(autouse=True)
def _functions_of_pyg_are_its_own_again() -> Iterator[None]:
    """`full_graph` in this process replaces them for good, and TorchScript cannot compile that."""
    yield
    compat.full_graph_patches.undo()
