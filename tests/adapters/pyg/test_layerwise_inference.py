"""``model.inference`` of PyG's models with loaders of shared data."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GAT, GraphSAGE

import peergraph_pyg

NODES, EDGES = 90, 600


@pytest.mark.parametrize("accelerated", [False, True])
@pytest.mark.parametrize("model_type", [GraphSAGE, GAT])
def test_equals_the_whole_graph(
    device: torch.device, model_type: type[torch.nn.Module], accelerated: bool
) -> None:
    generator = torch.Generator().manual_seed(2)
    edge_index = torch.randint(0, NODES - 3, (2, EDGES), generator=generator)
    data = Data(x=torch.randn(NODES, 8, generator=generator), edge_index=edge_index)
    torch.manual_seed(0)
    model = model_type(8, 16, 2, 5).eval().to(device)
    with torch.no_grad():
        expected = model(data.x.to(device), edge_index.to(device)).cpu()
    if accelerated:
        peergraph_pyg.accelerate(model)
    shared = peergraph_pyg.share(data, device=device)
    loader = NeighborLoader(shared, [-1], batch_size=32)
    # PyG keeps the rows of layers on the CPU unless it is asked not to.
    for options in ({}, {"embedding_device": device}):
        actual = model.inference(loader, device, **options)
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)
    assert loader.transform is None


def test_a_transform_of_the_loader_is_kept(device: torch.device) -> None:
    data = Data(x=torch.ones(NODES, 4), edge_index=torch.randint(0, NODES, (2, EDGES)))
    shared = peergraph_pyg.share(data, device=device)
    sizes: list[int] = []

    def count(batch: Data) -> Data:
        sizes.append(batch.batch_size)
        return batch

    loader = NeighborLoader(shared, [-1], batch_size=50, transform=count)
    GraphSAGE(4, 4, 1, 2).eval().to(device).inference(loader, device)
    assert sizes == [50, 40]
    assert loader.transform is count


def test_other_loaders_are_refused_by_pyg() -> None:
    with pytest.raises(AssertionError):
        GraphSAGE(4, 4, 1, 2).eval().inference([])
