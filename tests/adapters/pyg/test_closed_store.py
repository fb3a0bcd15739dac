"""Loaders of PyG whose store is closed while they are iterated."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

import peergraph_pyg
from peergraph.testing import run_ranks
from tests.adapters.pyg.graphs import random_data


def _loader_after_close(kind: type, num_workers: int, device: str) -> None:
    shared = peergraph_pyg.share(random_data(), device=device)
    # Forked workers have the memory from the start, others map it when they begin.
    context = "fork" if num_workers else None
    options = {"num_workers": num_workers, "multiprocessing_context": context}
    iterator = iter(kind(shared, [3, 2], batch_size=7, **options))
    next(iterator)
    peergraph_pyg.store_of(shared).close()
    if num_workers:  # which have mapped the memory themselves
        assert len(list(iterator)) > 0
        return
    with pytest.raises(RuntimeError, match="this store has been closed"):
        list(iterator)
    with pytest.raises(RuntimeError, match="this (store|table) has been closed"):
        next(iter(kind(shared, [3, 2], batch_size=7)))


@pytest.mark.parametrize("kind", [NeighborLoader, LinkNeighborLoader])
def test_an_iterator_is_told_that_its_store_is_closed(kind: type, device: torch.device) -> None:
    run_ranks(_loader_after_close, 1, kind, 0, device.type, device=device.type)


def test_workers_keep_the_memory_that_they_have_mapped() -> None:
    run_ranks(_loader_after_close, 1, NeighborLoader, 2, "cpu")


def _lazy_rows_after_close() -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    batch = next(iter(NeighborLoader(peergraph_pyg.lazy(shared), [3], batch_size=7)))
    peergraph_pyg.store_of(shared).close()
    with pytest.raises(RuntimeError, match="this table has been closed"):
        batch.x.sum()
    with pytest.raises(RuntimeError, match="this table has been closed"):
        peergraph_pyg.nn.SAGEConv(batch.x.shape[1], 4)(batch.x, batch.edge_index)


def test_lazy_features_after_close() -> None:
    run_ranks(_lazy_rows_after_close, 1)
