"""Embeddings beside torch's own, for tests of training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import peergraph
from peergraph import optim
from peergraph.memory import Group
from peergraph.store import EdgeSource, GraphSource, Store

ROWS, WIDTH = 37, 6

# Of peergraph, of torch, arguments of both.
OPTIMIZERS = [
    (optim.SparseSGD, torch.optim.SGD, {"lr": 0.3}),
    (optim.SparseSGD, torch.optim.SGD, {"lr": 0.3, "maximize": True}),
    (optim.SparseAdagrad, torch.optim.Adagrad, {"lr": 0.2}),
    (
        optim.SparseAdagrad,
        torch.optim.Adagrad,
        {"lr": 0.2, "lr_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3},
    ),
    (optim.SparseAdam, torch.optim.SparseAdam, {"lr": 0.1}),
    (optim.SparseAdam, torch.optim.SparseAdam, {"lr": 0.1, "betas": (0.5, 0.7), "eps": 1e-2}),
    (optim.SparseAdam, torch.optim.SparseAdam, {"lr": 0.1, "maximize": True}),
]
KINDS = [OPTIMIZERS[i] for i in (0, 2, 4)]


def first_rows(rows: int = ROWS, width: int = WIDTH, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn((rows, width), generator=torch.Generator().manual_seed(0)).to(dtype)


def batch_of(step: int, rank: int = 0, rows: int = ROWS, width: int = WIDTH) -> tuple[Tensor, ...]:
    """Ids, with duplicates, and what to draw their rows to. Some batches are empty."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    size = 0 if (step + rank) % 5 == 3 else int(torch.randint(1, 40, (), generator=generator))
    ids = torch.randint(rows, (size,), generator=generator)
    return ids, torch.randn((size, width), generator=generator)


def loss_of(rows: Tensor, target: Tensor) -> Tensor:
    """Not linear in the rows, so that wrong rows give wrong gradients."""
    return ((rows - target.to(rows)) ** 2).sum() + rows.sin().sum()


class TorchTwin:
    """torch.nn.Embedding with sparse gradients, trained on the CPU."""

    def __init__(self, weight: Tensor, optimizer: Any, arguments: dict[str, Any]) -> None:
        self.module = torch.nn.Embedding.from_pretrained(weight.clone(), freeze=False, sparse=True)
        self.optimizer = optimizer(self.module.parameters(), **arguments)

    def step(self, batches: list[tuple[Tensor, ...]], scale: float = 1.0) -> None:
        """One step on the sum of the batches' losses."""
        self.optimizer.zero_grad()
        for ids, target in batches:
            (scale * loss_of(self.module(ids), target)).backward()
        self.optimizer.step()

    @property
    def weight(self) -> Tensor:
        return self.module.weight.detach()


def train_step(embedding: peergraph.Embedding, optimizer: Any, batch: tuple[Tensor, ...]) -> None:
    ids, target = (part.to(embedding.table.device) for part in batch)
    optimizer.zero_grad()
    loss_of(embedding(ids), target).backward()
    optimizer.step()


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-12, torch.float16: 5e-3}
    limit = tolerance.get(ours.dtype, 4e-2)
    torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=limit, atol=limit)


def train_beside(
    twin: TorchTwin, embedding: peergraph.Embedding, optimizer: Any, steps: range
) -> None:
    for step in steps:
        batch = batch_of(step)
        train_step(embedding, optimizer, batch)
        twin.step([batch])


def make(device: torch.device, **arguments: Any) -> peergraph.Embedding:
    """Of ROWS rows without a store."""
    settings = {"num_embeddings": ROWS, "init": first_rows(), **arguments}
    return peergraph.Embedding(Group.current(device=device), WIDTH, **settings)


def make_store(device: torch.device, plan: str = "auto", **arguments: Any) -> Store:
    """Of a graph whose nodes of type "a" are ROWS."""
    generator = torch.Generator().manual_seed(5)
    edges = {
        ("a", "to", "a"): EdgeSource(coo=torch.randint(ROWS, (2, 150), generator=generator)),
        ("a", "to", "b"): EdgeSource(
            coo=torch.stack([torch.arange(ROWS), torch.arange(ROWS) % 11])
        ),
    }
    source = GraphSource({"a": ROWS, "b": 11}, edges, {}, {})
    return Store.build(source, plan=plan, device=device, **arguments)
