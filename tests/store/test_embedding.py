"""Embeddings and their optimizers against torch's own, in one process."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import peergraph
from peergraph import optim
from peergraph.memory import Group
from peergraph.store import EdgeSource, GraphSource, Store
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
    train_step,
)

PLANS = ["replicated", "sharded", "host", "auto"]


def make(device: torch.device, **arguments: Any) -> peergraph.Embedding:
    given = {"num_embeddings": ROWS, "init": first_rows(), **arguments}
    return peergraph.Embedding(Group.current(device=device), WIDTH, **given)


def make_store(device: torch.device, plan: str = "auto", **arguments: Any) -> Store:
    generator = torch.Generator().manual_seed(5)
    edges = {
        ("a", "to", "a"): EdgeSource(coo=torch.randint(ROWS, (2, 150), generator=generator)),
        ("a", "to", "b"): EdgeSource(
            coo=torch.stack([torch.arange(ROWS), torch.arange(ROWS) % 11])
        ),
    }
    source = GraphSource({"a": ROWS, "b": 11}, edges, {}, {})
    return Store.build(source, plan=plan, device=device, **arguments)


@pytest.mark.parametrize(("ours", "theirs", "arguments"), OPTIMIZERS)
def test_matches_torch(ours: Any, theirs: Any, arguments: Any, device: torch.device) -> None:
    embedding = make(device)
    optimizer = ours(embedding, **arguments)
    twin = TorchTwin(first_rows(), theirs, arguments)
    for step in range(25):
        batch = batch_of(step)
        train_step(embedding, optimizer, batch)
        twin.step([batch])
    assert_close(embedding.table.read(), twin.weight)
    embedding.close()


@pytest.mark.parametrize(("ours", "theirs", "arguments"), KINDS)
@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_in_the_order_of_a_store(
    ours: Any, theirs: Any, arguments: Any, plan: str, device: torch.device
) -> None:
    with make_store(device, "sharded") as store:
        embedding = peergraph.Embedding(store, WIDTH, node_type="a", plan=plan, init=first_rows())
        assert store.id_map("a").to_internal is not None
        optimizer = ours([embedding], **arguments)
        twin = TorchTwin(first_rows(), theirs, arguments)
        for step in range(10):
            batch = batch_of(step)
            train_step(embedding, optimizer, batch)
            twin.step([batch])
        assert_close(embedding.table.read(), twin.weight)


@pytest.mark.parametrize(("ours", "theirs", "arguments"), KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_dtypes_and_widths(
    ours: Any, theirs: Any, arguments: Any, dtype: torch.dtype, width: int, device: torch.device
) -> None:
    first = first_rows(ROWS, width, dtype)
    group = Group.current(device=device)
    embedding = peergraph.Embedding(group, width, num_embeddings=ROWS, init=first, dtype=dtype)
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


def test_ids_of_all_kinds(device: torch.device) -> None:
    embedding = make(device)
    optimizer = optim.SparseSGD(embedding, lr=1.0)
    for ids in (
        torch.tensor([[3, 3], [4, 0]], dtype=torch.int32),
        torch.tensor([3, 3, 4, 0], device=device),
        torch.tensor(3),
        torch.empty(0, dtype=torch.int64),
    ):
        before = embedding.table.read()
        optimizer.zero_grad()
        out = embedding(ids)
        assert out.shape == (*ids.shape, WIDTH)
        out.sum().backward()
        optimizer.step()
        counts = torch.bincount(ids.flatten().cpu(), minlength=ROWS)
        assert torch.equal(embedding.table.read(), before - counts[:, None])
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
    for step in range(6):
        train_step(embedding, optimizer, batch_of(step))
        twin.step([batch_of(step)])
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


@pytest.mark.parametrize(("ours", "theirs", "arguments"), KINDS)
@pytest.mark.parametrize("plan", ["sharded", "auto"])
def test_saved_and_restored_with_the_store(
    ours: Any, theirs: Any, arguments: Any, plan: str, tmp_path: Path, device: torch.device
) -> None:
    twin = TorchTwin(first_rows(), theirs, arguments)
    with make_store(device) as store:
        embedding = peergraph.Embedding(
            store, WIDTH, node_type="a", name="e", plan=plan, init=first_rows()
        )
        half = peergraph.Embedding(store, 3, node_type="b", dtype=torch.bfloat16)
        optimizer = ours(embedding, **arguments)
        for step in range(5):
            train_step(embedding, optimizer, batch_of(step))
            twin.step([batch_of(step)])
        half_rows = half.table.read()
        store.save(tmp_path / "store")
    with Store.load(tmp_path / "store", device=device) as store:
        assert set(store.embeddings) == {("a", "e"), ("b", "embedding")}
        embedding = store.embeddings["a", "e"]
        assert torch.equal(store.embeddings["b", "embedding"].table.read(), half_rows)
        assert_close(embedding.table.read(), twin.weight)
        optimizer = ours(embedding, **arguments)
        for step in range(5, 10):
            train_step(embedding, optimizer, batch_of(step))
            twin.step([batch_of(step)])
        assert_close(embedding.table.read(), twin.weight)
        # A second optimizer starts anew, as torch's does.
        fresh = optim.SparseAdam(embedding)
        assert fresh.state_dict()["state"][0]["step"] == 0
        with pytest.raises(RuntimeError, match="has another optimizer"):
            optimizer.step()


def test_initial_values(device: torch.device) -> None:
    group = Group.current(device=device)
    rows = []
    for _ in range(2):
        torch.manual_seed(7)
        embedding = peergraph.Embedding(group, 8, num_embeddings=2000)
        rows.append(embedding.table.read())
        embedding.close()
    assert torch.equal(*rows)
    assert abs(float(rows[0].mean())) < 0.05
    assert abs(float(rows[0].std()) - 1) < 0.05
    ones = peergraph.Embedding(
        group, 2, num_embeddings=5, init=torch.nn.init.ones_, dtype=torch.float16
    )
    assert torch.equal(ones.table.read(), torch.ones(5, 2).half())
    ones.close()
    none = peergraph.Embedding(group, 2, num_embeddings=0)
    optimizer = optim.SparseAdam(none)
    none(torch.empty(0, dtype=torch.int64)).sum().backward()
    optimizer.step()
    none.close()


def test_beside_a_dense_model(device: torch.device) -> None:
    """The rows are nobody else's parameters."""
    embedding = make(device)
    model = torch.nn.Sequential(embedding, torch.nn.Linear(WIDTH, 2)).to(device)
    assert len(list(model.parameters())) == 2
    assert list(model.state_dict()) == ["0.weight", "1.weight", "1.bias"]
    dense = torch.optim.Adam(model.parameters(), lr=0.05)
    sparse = optim.SparseAdam(embedding, lr=0.05)
    labels = torch.arange(ROWS, device=device) % 2
    for _ in range(60):
        dense.zero_grad()
        sparse.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.arange(ROWS)), labels)
        loss.backward()
        dense.step()
        sparse.step()
    assert float(loss.detach()) < 0.05
    embedding.close()


def test_not_in_the_state_dict_if_asked(device: torch.device) -> None:
    embedding = make(device, in_state_dict=False)
    assert embedding.state_dict() == {}
    embedding.load_state_dict({})
    embedding.close()


def test_bad_embeddings(device: torch.device) -> None:
    group = Group.current(device=device)
    for arguments, error, match in (
        ({"num_embeddings": None}, ValueError, "num_embeddings must be given"),
        ({"num_embeddings": -1}, ValueError, "num_embeddings must be an int of at least 0, got -1"),
        ({"embedding_dim": 0}, ValueError, "embedding_dim must be an int of at least 1, got 0"),
        ({"dtype": torch.int32}, ValueError, "dtype must be one of .*, got torch.int32"),
        ({"init": torch.zeros(3, 3)}, ValueError, r"init must have shape \(5, 2\), got \(3, 3\)"),
        ({"init": 0}, TypeError, "init must be a tensor, a function or None, got 0"),
        ({"plan": "best"}, ValueError, "got 'best'"),
    ):
        given = {"embedding_dim": 2, "num_embeddings": 5, **arguments}
        with pytest.raises(error, match=match):
            peergraph.Embedding(group, **given)
    with make_store(device) as store:
        peergraph.Embedding(store, 2, node_type="a")
        with pytest.raises(ValueError, match="'a' has an embedding 'embedding' already"):
            peergraph.Embedding(store, 2, node_type="a")
        with pytest.raises(KeyError, match="c"):
            peergraph.Embedding(store, 2, node_type="c")
        with pytest.raises(ValueError, match="num_embeddings must be 11, the nodes of type 'b'"):
            peergraph.Embedding(store, 2, node_type="b", num_embeddings=3)
        copied = pickle.loads(pickle.dumps(store))
        assert copied.embeddings == {}


def test_what_cannot_be_done(device: torch.device) -> None:
    embedding = make(device)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(torch.nn.Sequential(embedding))
    with pytest.raises(TypeError, match="save its state_dict, or the store"):
        pickle.dumps(embedding)
    with pytest.raises(RuntimeError, match="weight must have shape"):
        embedding.load_state_dict({"weight": torch.zeros(2, 2)})
    with pytest.raises(RuntimeError, match="Missing key"):
        embedding.load_state_dict({})
    embedding.close()


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


def test_bad_ids(device: torch.device) -> None:
    embedding = make(device)
    optimizer = optim.SparseSGD(embedding, lr=1.0)
    with pytest.raises(IndexError, match=r"ids\[1\] = 37 is out of range"):
        embedding(torch.tensor([0, ROWS]))
    with pytest.raises(TypeError, match="ids must be int32 or int64"):
        embedding(torch.tensor([0.5]))
    if device.type == "cuda":
        embedding(torch.tensor([0, ROWS], device=device)).sum().backward()
        with pytest.raises(IndexError, match="is out of range for a table of 37 rows"):
            optimizer.step()
        with pytest.raises(IndexError, match="is out of range"):
            peergraph.synchronize()
    assert torch.equal(embedding.table.read(), first_rows())
    embedding.close()


def test_the_store_counts_its_memory(device: torch.device) -> None:
    with make_store(device) as store:
        before = len(store.memory().extents)
        embedding = peergraph.Embedding(store, WIDTH, node_type="a", plan="sharded")
        optim.SparseAdam(embedding)
        added = store.memory().extents[before:]
        assert [e.name for e in added] == [
            f"a.embedding.{name}" for name in ("weight", "exp_avg", "exp_avg_sq")
        ]
        assert all(sum(e.sharded) == ROWS * WIDTH * 4 for e in added)
