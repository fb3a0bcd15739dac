"""The optimizers of embeddings against torch's own, in one process."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

import peergraph
from peergraph import optim
from peergraph.memory import Group
from tests.named_case import named_case
from tests.store.trained import (
    KINDS,
    OPTIMIZERS,
    ROWS,
    WIDTH,
    TorchTwin,
    assert_close,
    batch_of,
    first_rows,
    loss_of,
    make,
    make_store,
    train_beside,
    train_step,
)

PLANS = ["replicated", "sharded", "host", "auto"]
DTYPES = [torch.float64, torch.float16, torch.bfloat16]


def test_matches_torch(device: torch.device) -> None:
    for ours, theirs, arguments in OPTIMIZERS:
        with named_case(ours.__name__, arguments):
            embedding = make(device)
            optimizer = ours(embedding, **arguments)
            twin = TorchTwin(first_rows(), theirs, arguments)
            train_beside(twin, embedding, optimizer, range(25))
            assert_close(embedding.table.read(), twin.weight)
            embedding.close()


@pytest.mark.parametrize(
    ("ours", "theirs", "arguments", "plan"),
    [(*kind, plan) for kind, plan in zip((*KINDS, KINDS[2]), PLANS, strict=True)],
)
def test_every_plan_in_the_order_of_a_store(
    ours: Any, theirs: Any, arguments: Any, plan: str, device: torch.device
) -> None:
    with make_store(device, "sharded") as store:
        embedding = peergraph.Embedding(store, WIDTH, node_type="a", plan=plan, init=first_rows())
        assert store.id_map("a").to_internal is not None
        optimizer = ours([embedding], **arguments)
        twin = TorchTwin(first_rows(), theirs, arguments)
        train_beside(twin, embedding, optimizer, range(10))
        assert_close(embedding.table.read(), twin.weight)


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_and_widths(kind: tuple[Any, Any, Any], device: torch.device) -> None:
    for dtype, width in product(DTYPES, [1, 3, 8]):
        with named_case(dtype, width):
            ours, theirs, arguments = kind
            first = first_rows(ROWS, width, dtype)
            group = Group.current(device=device)
            embedding = peergraph.Embedding(
                group, width, num_embeddings=ROWS, init=first, dtype=dtype
            )
            optimizer = ours(embedding, **arguments)
            # Sums and state of half precision are float32: so is the reference.
            exact = torch.float64 if dtype == torch.float64 else torch.float32
            twin = TorchTwin(first.to(exact), theirs, arguments)
            for step in range(4):
                ids, values = batch_of(step, width=width)
                grads = values.to(dtype)
                optimizer.zero_grad()
                embedding(ids).backward(grads.to(device))
                optimizer.step()
                twin.optimizer.zero_grad()
                twin.module(ids).backward(grads.to(exact))
                twin.optimizer.step()
            assert embedding(torch.tensor([1])).dtype == dtype
            assert_close(embedding.table.read(), twin.weight)
            embedding.close()


def test_gradients_add_up_until_they_are_zeroed(device: torch.device) -> None:
    embedding = make(device)
    optimizer = optim.SparseSGD(embedding, lr=0.1)
    twin = TorchTwin(first_rows(), torch.optim.SGD, {"lr": 0.1})
    batches = [batch_of(0), batch_of(1), batch_of(2)]
    for _ in range(2):
        for ids, target in batches:
            loss_of(embedding(ids), target.to(device)).backward()
    optimizer.step()
    twin.step(batches * 2)
    assert_close(embedding.table.read(), twin.weight)
    optimizer.step()  # as torch: the gradients are still there
    twin.optimizer.step()
    assert_close(embedding.table.read(), twin.weight)
    embedding.zero_grad()
    optimizer.step()
    assert_close(embedding.table.read(), twin.weight)
    with torch.no_grad():
        assert not embedding(torch.tensor([1])).requires_grad
    embedding.close()


def test_a_row_that_all_read(device: torch.device) -> None:
    """Runs of thousands are summed in pieces, in the same order everywhere."""
    results = []
    for _ in range(2):
        embedding = make(device)
        optimizer = optim.SparseSGD(embedding, lr=1e-3)
        generator = torch.Generator().manual_seed(2)
        ids = torch.randint(3, (5000,), generator=generator)
        weights = torch.randn((5000, WIDTH), generator=generator)
        (embedding(ids) * weights.to(device)).sum().backward()
        optimizer.step()
        results.append(embedding.table.read())
        embedding.close()
    expected = first_rows().index_add(0, ids, weights, alpha=-1e-3)
    assert_close(results[0], expected)
    assert torch.equal(*results)


def test_schedulers_and_groups(device: torch.device) -> None:
    embeddings = [make(device), make(device)]
    arguments: dict[str, Any] = {"lr": 0.1}
    twins = [
        TorchTwin(first_rows(), torch.optim.Adagrad, {"lr": 0.1}),
        TorchTwin(first_rows(), torch.optim.Adagrad, {"lr": 0.4}),
    ]
    groups = [{"params": [embeddings[0]]}, {"params": embeddings[1], "lr": 0.4}]
    optimizer = optim.SparseAdagrad(groups, **arguments)
    schedulers = [
        torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5)
        for o in (optimizer, *(t.optimizer for t in twins))
    ]
    for step in range(6):
        batch = batch_of(step)
        optimizer.zero_grad()
        for embedding in embeddings:
            loss_of(embedding(batch[0]), batch[1].to(device)).backward()
        optimizer.step()
        for twin in twins:
            twin.step([batch])
        for scheduler in schedulers:
            scheduler.step()
    for embedding, twin in zip(embeddings, twins, strict=True):
        assert_close(embedding.table.read(), twin.weight)
        embedding.close()
    if device.type == "cuda":
        with pytest.raises(ValueError, match="must be on one device"):
            optim.SparseSGD([make(device), make(torch.device("cpu"))])


def test_closure(device: torch.device) -> None:
    embedding = make(device)
    optimizer = optim.SparseSGD(embedding, lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = embedding(torch.tensor([1, 2])).pow(2).sum()
        loss.backward()
        return float(loss.detach())

    losses = [optimizer.step(closure) for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]
    embedding.close()


@pytest.mark.parametrize(("ours", "theirs", "arguments"), KINDS)
def test_state_dicts_resume(ours: Any, theirs: Any, arguments: Any, device: torch.device) -> None:
    embedding, other = make(device), make(device, init=None)
    optimizer = ours(embedding, **arguments)
    twin = TorchTwin(first_rows(), theirs, arguments)
    train_beside(twin, embedding, optimizer, range(6))
    model = torch.nn.Sequential(other)
    model.load_state_dict({"0.weight": embedding.state_dict()["weight"]})
    second = ours(other, lr=99.0)
    second.load_state_dict(optimizer.state_dict())
    third_embedding = make(device, init=twin.weight)
    third = ours(third_embedding, lr=99.0)
    third.load_state_dict(twin.optimizer.state_dict())
    for step in range(6, 12):
        for e, o in ((embedding, optimizer), (other, second), (third_embedding, third)):
            train_step(e, o, batch_of(step))
        twin.step([batch_of(step)])
    assert torch.equal(other.table.read(), embedding.table.read())
    assert_close(embedding.table.read(), twin.weight)
    assert_close(third_embedding.table.read(), twin.weight)
    for e in (embedding, other, third_embedding):
        e.close()


def test_bad_optimizers(device: torch.device) -> None:
    embedding = make(device)
    for kind, arguments, error, match in (
        (optim.SparseSGD, {"momentum": 0.9}, NotImplementedError, "momentum=0.9"),
        (optim.SparseSGD, {"weight_decay": 0.1}, NotImplementedError, "weight_decay=0.1"),
        (optim.SparseSGD, {"lr": -1.0}, ValueError, "lr must not be negative, got -1.0"),
        (optim.SparseAdagrad, {"weight_decay": 0.1}, NotImplementedError, "weight_decay=0.1"),
        (optim.SparseAdagrad, {"lr_decay": -1.0}, ValueError, "lr_decay must not be negative"),
        (optim.SparseAdam, {"betas": (0.9, 1.0)}, ValueError, r"betas\[1\] must be in \[0, 1\)"),
        (optim.SparseAdam, {"eps": 0.0}, ValueError, "eps must be positive, got 0.0"),
        (optim.SparseAdam, {"reduce": "max"}, ValueError, "reduce must be"),
    ):
        with pytest.raises(error, match=match):
            kind(embedding, **arguments)
    with pytest.raises(TypeError, match=r"embeddings must be of peergraph.Embedding, got Linear"):
        optim.SparseSGD([torch.nn.Linear(1, 1)])
    with pytest.raises(ValueError, match="empty parameter list"):
        optim.SparseSGD([])
    with pytest.raises(ValueError, match="more than once"):
        optim.SparseSGD([embedding, embedding])
    optimizer = optim.SparseSGD(embedding)
    optimizer.param_groups[0]["momentum"] = 0.5
    with pytest.raises(NotImplementedError, match="momentum=0.5"):
        optimizer.step()
    adam = optim.SparseAdam(embedding)
    wrong = {0: {"step": 1, "exp_avg": torch.zeros(2, 2)}}
    with pytest.raises(ValueError, match=r"'exp_avg' of embedding 0 must have shape \(37, 6\)"):
        adam.load_state_dict({**adam.state_dict(), "state": wrong})
    embedding.close()


def test_gradients_of_other_shapes_than_the_rows(device: torch.device) -> None:
    embedding = make(device)
    optimizer = optim.SparseAdam(embedding)
    ids = torch.arange(4, device=device)
    embedding.pending.append((ids, torch.ones(3, 6, device=device)))
    with pytest.raises(ValueError, match=r"ids \[4\] must be \[4, 6\], got \[3, 6\]"):
        optimizer.step()
    embedding.close()
