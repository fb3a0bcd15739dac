"""PyG's unmodified HGTLoader on shared data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric import seed_everything
from torch_geometric.loader import HGTLoader

import peergraph_pyg
from peergraph.testing import run_ranks
from tests.adapters.pyg.graphs import check_typed_batch, random_data, random_hetero


def loader(shared: Any, **options: Any) -> HGTLoader:
    return HGTLoader(shared, [4, 3], input_nodes="paper", batch_size=9, **options)


def check_dense(batch: Any, data: Any) -> None:
    """All edges among the nodes of the batch are in it."""
    for edge_type in data.edge_types:
        ends = data[edge_type].edge_index
        inside = torch.isin(ends[0], batch[edge_type[0]].n_id.cpu())
        inside &= torch.isin(ends[1], batch[edge_type[2]].n_id.cpu())
        e_id = batch[edge_type].e_id.cpu()
        assert torch.equal(e_id.sort().values, inside.nonzero().view(-1))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches(workers: int, device: torch.device) -> None:
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    seeds = []
    for batch in loader(shared, num_workers=workers):
        check_typed_batch(batch, data)
        check_dense(batch, data)
        size = batch["paper"].batch_size
        assert torch.equal(batch["paper"].n_id[:size].cpu(), batch["paper"].input_id)
        assert len(batch["paper"].n_id) == size + 4 + 3
        assert len(batch["author"].n_id) == 4 + 3
        assert len(batch["venue"].n_id) <= 6
        assert batch.title == "library"
        seeds.append(batch["paper"].input_id)
    assert torch.equal(torch.cat(seeds), torch.arange(40))


def test_same_batches_from_stores(device: torch.device) -> None:
    shared = peergraph_pyg.share(random_hetero(), device=device)
    pair = peergraph_pyg.stores(peergraph_pyg.store_of(shared))
    torch.manual_seed(1)
    expected = list(loader(shared))
    torch.manual_seed(1)
    for batch, other in zip(loader(pair), expected, strict=True):
        for t in shared.edge_types:
            assert torch.equal(batch[t].edge_index, other[t].edge_index)
        assert torch.equal(batch["paper"].x, other["paper"].x)


def test_deleted_edge_types_are_not_sampled(device: torch.device) -> None:
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    del data["author", "writes", "paper"], shared["author", "writes", "paper"]
    for batch in loader(shared):
        check_typed_batch(batch, data)
        assert batch["author"].num_nodes == 0


def _batches() -> list[Any]:
    rank = torch.distributed.get_rank()
    shared = peergraph_pyg.share(random_hetero() if rank == 0 else None, device="cpu")
    torch.manual_seed(5)
    return [batch["author"].n_id.tolist() for batch in loader(shared)]


def test_two_ranks() -> None:
    seed_everything(5)
    expected = [
        batch["author"].n_id.tolist()
        for batch in loader(peergraph_pyg.share(random_hetero(), device="cpu"))
    ]
    assert run_ranks(_batches, 2) == [expected, expected]


def test_errors() -> None:
    with pytest.raises(NotImplementedError, match="no types"):
        HGTLoader(peergraph_pyg.share(random_data(), device="cpu"), [4], input_nodes="paper")
    shared = peergraph_pyg.share(random_hetero(), device="cpu")
    with pytest.raises(ValueError, match="'book' is not one of"):
        HGTLoader(shared, {"book": [4]}, input_nodes="paper")
