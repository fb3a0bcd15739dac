"""Embeddings: look-ups, saving, what they refuse; in one process."""

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
from peergraph.store import Store
from tests.named_case import named_case
from tests.store.trained import (
    KINDS,
    ROWS,
    WIDTH,
    TorchTwin,
    assert_close,
    first_rows,
    make,
    make_store,
    train_beside,
)


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


@pytest.mark.parametrize(
    ("ours", "theirs", "arguments", "plan"),
    [(*KINDS[0], "auto"), (*KINDS[1], "sharded"), (*KINDS[2], "sharded"), (*KINDS[2], "auto")],
)
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
        train_beside(twin, embedding, optimizer, range(5))
        half_rows = half.table.read()
        store.save(tmp_path / "store")
    with Store.load(tmp_path / "store", device=device) as store:
        assert set(store.embeddings) == {("a", "e"), ("b", "embedding")}
        embedding = store.embeddings["a", "e"]
        assert torch.equal(store.embeddings["b", "embedding"].table.read(), half_rows)
        assert_close(embedding.table.read(), twin.weight)
        optimizer = ours(embedding, **arguments)
        train_beside(twin, embedding, optimizer, range(5, 10))
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
        ({"num_embeddings": -1}, ValueError, "num_embeddings must not be negative, got -1"),
        ({"embedding_dim": 0}, ValueError, "embedding_dim must be at least 1, got 0"),
        ({"dtype": torch.int32}, ValueError, "dtype must be one of .*, got torch.int32"),
        ({"init": torch.zeros(3, 3)}, ValueError, r"init must have shape \(5, 2\), got \(3, 3\)"),
        ({"init": 0}, TypeError, "init must be a tensor, a function or None, got 0"),
        ({"plan": "best"}, ValueError, "got 'best'"),
    ):
        settings = {"embedding_dim": 2, "num_embeddings": 5, **arguments}
        with pytest.raises(error, match=match):
            peergraph.Embedding(group, **settings)
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
    with pytest.raises(TypeError, match="is not copied with a model"):
        copy.deepcopy(torch.nn.Sequential(embedding))
    (same,) = copy.deepcopy(torch.nn.Sequential(embedding), {id(embedding): embedding})
    assert same is embedding
    saved = copy.deepcopy(embedding.state_dict())["weight"]
    assert torch.equal(saved, embedding.table.read())
    with pytest.raises(TypeError, match="save its state_dict, or the store"):
        pickle.dumps(embedding)
    with pytest.raises(RuntimeError, match="weight must have shape"):
        embedding.load_state_dict({"weight": torch.zeros(2, 2)})
    with pytest.raises(RuntimeError, match="Missing key"):
        embedding.load_state_dict({})
    embedding.close()


BAD_FUNCTIONS = [
    (lambda x: x.normal_() * 0.1, "init must fill its argument in place, it returned another"),
    (
        lambda x: x.resize_(3, WIDTH).zero_(),
        r"init must fill \[37, \d+\] in place, it left \[3",
    ),
]


def test_functions_that_do_not_fill_all_rows(device: torch.device) -> None:
    for init, message in BAD_FUNCTIONS:
        with named_case(message), pytest.raises(ValueError, match=message):
            make(device, init=init)


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
        before = len(store.memory().allocations)
        embedding = peergraph.Embedding(store, WIDTH, node_type="a", plan="sharded")
        optim.SparseAdam(embedding)
        added = store.memory().allocations[before:]
        assert [e.name for e in added] == [
            f"a.embedding.{name}" for name in ("weight", "exp_avg", "exp_avg_sq")
        ]
        assert all(sum(e.sharded) == ROWS * WIDTH * 4 for e in added)
