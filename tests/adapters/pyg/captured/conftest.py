"""The graph that captured steps train on."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

from tests.adapters.pyg.captured.training import CLASSES, NODES, WIDTH


@pytest.fixture(scope="module")
def plain() -> Data:
    random = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(NODES, WIDTH, generator=random),
        y=torch.randint(CLASSES, (NODES,), generator=random),
        edge_index=torch.randint(NODES, (2, 9000), generator=random),
        edge_attr=torch.randn(9000, 3, generator=random),
    )
