"""Fixtures of the tests of tables."""

from __future__ import annotations

import pytest
import torch

from peergraph.memory import Group


@pytest.fixture
def group(device: torch.device) -> Group:
    return Group.current(device=device)
