"""Copies, pickles and files of shared tensors, graphs and batches of PyG."""

from __future__ import annotations

import copy
import io
import os
import pickle
import re
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader

import peergraph_pyg
from peergraph.testing import run_ranks
from peergraph.testing.starting import context_of
from peergraph_pyg import AdjacencyTensor, EdgeIndexTensor, LazyRows, StoreTensor, TableTensor
from tests.adapters.pyg.graphs import random_data, random_hetero
from tests.named_case import named_cases

WRITES: dict[str, Callable[[Any], object]] = {
    "row": lambda x: x.__setitem__(0, 1.0),
    "all": lambda x: x.__setitem__(..., 1.0),
    "copy_": lambda x: x.copy_(torch.zeros(5)),
    "index_put_": lambda x: x.index_put_((torch.tensor([3]),), torch.tensor(2.0, device=x.device)),
    "detach": lambda x: x.detach().__setitem__(0, 1.0),
    "data": lambda x: x.data.__setitem__(0, 1.0),
    "copy of the copy": lambda x: copy.copy(copy.deepcopy(x)).__setitem__(0, 1.0),
    "sent": lambda x: sent(x).__setitem__(0, 1.0),
}


def sent(value: Any) -> Any:
    """As a process of `multiprocessing` gets it."""
    return ForkingPickler.loads(ForkingPickler.dumps(value))


def saved(value: Any, **options: Any) -> Any:
    """As it comes back from a file."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **{"weights_only": False, **options})


def with_matrix() -> Data:
    data = random_data()
    rows, values = data.edge_index.flip(0), torch.ones(data.num_edges)
    return Data(x=data.x, adj_t=torch.sparse_coo_tensor(rows, values, (60, 60)))


@named_cases("name", WRITES)
def test_deep_copies_are_read_only(name: str, device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    copied = copy.deepcopy(shared)
    with pytest.raises(RuntimeError, match=re.escape("x = x.clone()")):
        WRITES[name](copied.x)
    assert torch.equal(shared.x.cpu(), data.x)
    assert torch.equal(copied.x.cpu(), data.x)
    copied.x = copied.x.clone()
    WRITES["row"](copied.x)
    assert torch.equal(shared.x.cpu(), data.x)


def test_deep_copies_are_of_the_same_store() -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    copied = copy.deepcopy(shared)
    assert peergraph_pyg.store_of(copied) is peergraph_pyg.store_of(shared)
    assert isinstance(copied.edge_index, EdgeIndexTensor)
    (batch,) = NeighborLoader(copied, [-1], batch_size=60)
    assert torch.equal(batch.x, shared.x[batch.n_id])
    shared.x[2] = 4.0  # the original is written to as before
    assert copied.x[2].tolist() == [4.0] * 5


def test_clones_have_values_of_their_own() -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device="cpu")
    clone = shared.clone()
    assert not any(isinstance(value, StoreTensor) for value in clone.to_dict().values())
    clone.x[0] = 5.0
    assert torch.equal(shared.x.clone(), data.x)


def test_shallow_copies_share() -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    for other in (copy.copy(shared).x, copy.copy(shared.x), shared.to_dict()["x"]):
        other[1] += 1
        assert torch.equal(other.clone(), shared.x.clone())


def save_all(folder: Path) -> None:
    """What one process writes, before it ends with all that it shared."""
    shared = peergraph_pyg.share(random_data(), device="cpu")
    model = torch.nn.Linear(5, 2)
    model.register_buffer("features", shared.x)
    (batch,) = NeighborLoader(peergraph_pyg.lazy(shared), [-1], batch_size=60)
    assert isinstance(batch.x, LazyRows)
    torch.save(shared, folder / "data.pt")
    torch.save(peergraph_pyg.share(random_hetero(), device="cpu"), folder / "hetero.pt")
    torch.save(peergraph_pyg.share(with_matrix(), device="cpu"), folder / "matrix.pt")
    torch.save(batch, folder / "batch.pt")
    torch.save(model.state_dict(), folder / "state.pt")
    (folder / "data.pickle").write_bytes(pickle.dumps(shared))


def assert_same_data(loaded: Any, data: Any) -> None:
    for storage, expected in zip(loaded.stores, data.stores, strict=True):
        for key, value in expected.items():
            if isinstance(value, Tensor):
                assert type(storage[key]) is Tensor
                assert torch.equal(storage[key], value), key
            else:
                assert storage[key] == value


def test_files_outlive_the_process(tmp_path: Path) -> None:
    run_ranks(save_all, 1, tmp_path)
    options = {"weights_only": False}
    assert_same_data(torch.load(tmp_path / "data.pt", **options), random_data())
    assert_same_data(pickle.loads((tmp_path / "data.pickle").read_bytes()), random_data())
    assert_same_data(torch.load(tmp_path / "hetero.pt", **options), random_hetero())
    matrix = torch.load(tmp_path / "matrix.pt", **options).adj_t
    assert matrix.layout is torch.sparse_coo
    assert torch.equal(matrix.to_dense(), with_matrix().adj_t.to_dense())
    batch = torch.load(tmp_path / "batch.pt", **options)
    assert type(batch.x) is Tensor
    assert torch.equal(batch.x, random_data().x[batch.n_id])
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert torch.equal(state["features"], random_data().x)


def test_pickled_values(device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    for give in (lambda x: pickle.loads(pickle.dumps(x)), saved):
        for key in ("x", "edge_index"):
            value = give(shared[key])
            assert type(value) is Tensor
            assert value.device.type == "cpu"
            assert torch.equal(value, data[key])
        assert give(shared.x.detach().requires_grad_()).requires_grad


def test_sent_to_a_process_is_a_handle() -> None:
    big = random_data(5000, 9000)
    shared = peergraph_pyg.share(big, device="cpu")
    assert len(ForkingPickler.dumps(shared)) < big.x.nbytes
    other = sent(shared)
    assert peergraph_pyg.store_of(other) is other.y.store
    assert torch.equal(other.x.clone(), big.x)
    assert torch.equal(other.edge_index.clone(), big.edge_index)
    other.x[7] = 5.0
    assert torch.equal(shared.x[7], torch.full((5,), 5.0))
    matrix = sent(peergraph_pyg.share(with_matrix(), device="cpu").adj_t)
    assert isinstance(matrix, AdjacencyTensor)
    assert isinstance(sent(peergraph_pyg.lazy(shared)).x, type(peergraph_pyg.lazy(shared).x))


def test_more_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    monkeypatch.setenv("PEERGRAPH_HOST_MEMORY", "1199")
    with pytest.raises(MemoryError, match=r"'x' of '_N'.*1200 bytes, and 1199 are free.*Store\.sa"):
        pickle.dumps(shared.x)
    assert torch.equal(sent(shared.x)[3], shared.x[3])


def test_averaged_models_keep_shared_buffers() -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    model = torch.nn.Linear(5, 2)
    model.register_buffer("features", shared.x)
    average = AveragedModel(model)
    for _ in range(3):
        average.update_parameters(model)
    assert isinstance(average.module.features, TableTensor)
    model.load_state_dict(model.state_dict())
    assert torch.equal(model.features.clone(), random_data().x)


def test_lazy_rows_copied() -> None:
    shared = peergraph_pyg.lazy(peergraph_pyg.share(random_data(), device="cpu"))
    x = shared.x[torch.tensor([3, 1, 2])]
    assert isinstance(x, LazyRows)
    same = copy.copy(x)
    assert isinstance(same, LazyRows)
    assert not x.is_gathered
    same[0] = 7.0
    x[1:].numpy()[0] = 8.0
    expected = torch.tensor([[7.0], [8.0]]).expand(2, 5)
    for other in (x, copy.deepcopy(x), sent(x), saved(x, weights_only=True)):
        assert torch.equal(other[:2].clone(), expected)
    x.requires_grad_()
    assert copy.deepcopy(x).requires_grad
    assert saved(x).requires_grad


def test_lazy_rows_keep_their_shape() -> None:
    shared = peergraph_pyg.lazy(peergraph_pyg.share(random_data(), device="cpu"))
    for change in (
        lambda x: x.t_(),
        lambda x: x.resize_(2),
        lambda x: x.unsqueeze_(0),
        lambda x: setattr(x, "data", torch.zeros(2)),
    ):
        x = shared.x[torch.tensor([3, 1, 2])]
        with pytest.raises(NotImplementedError, match="LazyRows"):
            change(x)
        assert torch.equal(x.clone(), random_data().x[[3, 1, 2]])


def test_queues_and_spawned_children() -> None:
    """`multiprocessing` gives handles in arguments and in queues, both ways."""
    shared = peergraph_pyg.share(random_data(), device="cpu")
    (batch,) = NeighborLoader(peergraph_pyg.lazy(shared), [-1], batch_size=60)
    context = context_of("forked")
    queue, back = context.Queue(), context.Queue()
    process = context.Process(target=talk, args=(queue, back, shared, batch))
    process.start()
    try:
        pid, x, rows = queue.get(timeout=250)
        assert pid == process.pid
        assert isinstance(x, TableTensor)
        assert torch.equal(rows, batch.x.clone())
        assert shared.x[3].tolist() == [6.0] * 5
        back.put(None)
        process.join(timeout=250)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


def talk(queue: Any, back: Any, data: Any, batch: Any) -> None:
    """In the child: writes, and gives the shared tensor back."""
    data.x[3] = 6.0
    queue.put((os.getpid(), data.x, batch.x))
    back.get(timeout=250)
