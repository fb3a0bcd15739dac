"""The seeds of a loader's batches, and the state of torch's generator, are those of plain PyG."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler, WeightedRandomSampler

pytest.importorskip("torch_geometric")

from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

import peergraph_pyg
from peergraph_pyg.loader import seed_order

NODES, EDGES = 103, 400
POSITIONS: Any = range(NODES)


def make_data() -> Data:
    torch.manual_seed(0)
    return Data(x=torch.randn(NODES, 4), edge_index=torch.randint(0, NODES, (2, EDGES)))


def order_of(make_loader: Any, data: Any) -> tuple[list[list[int]], list[float]]:
    """Returns the ids of the seeds by batch of two epochs, and numbers that a loop draws."""
    torch.manual_seed(7)
    loader = make_loader(data)
    ids: list[list[int]] = []
    for _ in range(2):
        ids += [batch.input_id.tolist() for batch in loader]
    return ids, torch.rand(3).tolist()


def plain_order(make_loader: Any, data: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(seed_order, "_is_known", lambda sampler: False)
        return order_of(make_loader, data)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True},
        {"shuffle": True, "drop_last": True},
        {"drop_last": True, "batch_size": 200},
        {"shuffle": True, "batch_size": 103},
        {"shuffle": True, "batch_size": 1, "input_nodes": torch.arange(5)},
        {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
        {"sampler": DistributedSampler(POSITIONS, 2, 1)},
        {"sampler": WeightedRandomSampler([1.0] * NODES, NODES)},
        {"sampler": RandomSampler(POSITIONS, num_samples=150)},
        {"sampler": RandomSampler(POSITIONS, replacement=True)},
        {"input_nodes": torch.randperm(NODES) < 40, "shuffle": True},
    ],
    ids=lambda options: "-".join(options) or "default",
)
def test_orders_are_those_of_torch(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(data: Any) -> Any:
        if "generator" in options:
            options["generator"].manual_seed(3)
        return NeighborLoader(data, num_neighbors=[2], **{"batch_size": 10, **options})

    shared = peergraph_pyg.share(make_data())
    expected = plain_order(make, shared, monkeypatch)
    assert order_of(make, shared) == expected
    ids, _ = expected
    assert ids or options.get("drop_last")


def test_links_and_batches_of_their_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = peergraph_pyg.share(make_data())

    def make(data: Any) -> Any:
        edges = data.edge_index[:, :50]
        return LinkNeighborLoader(data, [2], edge_label_index=edges, batch_size=8, shuffle=True)

    assert order_of(make, shared) == plain_order(make, shared, monkeypatch)
    batch = next(iter(make(shared)))
    assert batch.input_id.untyped_storage().nbytes() == batch.input_id.numel() * 8


def test_what_users_collate_gets_lists() -> None:
    """A subclass may expect what torch's DataLoader passes."""
    types: list[type] = []

    class Loader(NeighborLoader):  # type: ignore[misc]
        def collate_fn(self, index: Any) -> Any:
            types.append(type(index))
            return super().collate_fn(index)

    for _ in Loader(peergraph_pyg.share(make_data()), [2], batch_size=50):
        pass
    assert types == [list] * 3
