"""Tables that are trained on several machines: the same rows as on one, saved and loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import peergraph
from peergraph import optim
from peergraph.memory import Group
from tests.machines.hosts import device_of_rank, run_on_hosts
from tests.store.trained import ROWS, WIDTH, batch_of, first_rows, train_step


def _make(device: str, kind: Any = optim.SparseAdam) -> tuple[peergraph.Embedding, Any]:
    group = Group.current(device=device_of_rank(device), timeout=60)
    init = first_rows() if group.machines.rank == 0 else None
    embedding = peergraph.Embedding(group, WIDTH, num_embeddings=ROWS, init=init)
    return embedding, kind(embedding, lr=0.1)


def _trains(device: str) -> dict[str, torch.Tensor]:
    """Ranks without gradients, two tables, another optimizer; rows after training."""
    embedding, adam = _make(device)
    rank, group = dist.get_rank(), embedding.trained.group
    torch.manual_seed(rank)
    others = [
        peergraph.Embedding(group, width, num_embeddings=ROWS, dtype=dtype)
        for width, dtype in ((3, torch.float64), (5, torch.bfloat16))
    ]
    sgd = optim.SparseAdagrad(others, lr=0.3)
    for step in range(4):
        train_step(embedding, adam, batch_of(step, rank))
        sgd.zero_grad()
        if (step + rank) % 2:
            for other in others:
                ids = batch_of(step + 7, rank)[0].to(group.device)
                other(ids).square().sum().backward()
        sgd.step()
    model = DistributedDataParallel(torch.nn.Linear(WIDTH, 1).to(group.device))
    torch.nn.init.ones_(model.module.weight)
    with Join([model, adam]):  # ranks with different numbers of batches
        for step in range(rank):
            adam.zero_grad()
            ids = batch_of(step + 20, rank)[0].to(group.device)
            model(embedding(ids)).square().sum().backward()
            adam.step()
    # One rank's error is everyone's.
    ids = torch.tensor([ROWS if rank == 0 else 1], device=group.device)
    embedding.pending.append((ids, torch.zeros(1, WIDTH, device=group.device)))
    with pytest.raises((IndexError, RuntimeError), match=r"out of range|rank 0 failed"):
        adam.step()
    results = {"steps": torch.tensor([e.row_state.step for e in (embedding, *others)])}  # type: ignore[union-attr]
    for number, one in enumerate((embedding, *others)):
        results.update({f"{number}.{name}": table.read() for name, table in one.tables().items()})
    return results


def _assert_equal(actual: Sequence[Any], expected: Sequence[Any]) -> None:
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert torch.equal(mine[name], theirs[name]), name


@pytest.mark.parametrize("hosts", ["aabb", "abbb"])
def test_rows_are_those_of_one_machine(hosts: str) -> None:
    results = run_on_hosts(_trains, hosts, "cpu")
    _assert_equal(results, [results[0]] * 4)
    _assert_equal(results, run_on_hosts(_trains, "aaaa", "cpu"))


def _saves(device: str, folder: str) -> torch.Tensor:
    embedding, adam = _make(device)
    for step in range(3):
        train_step(embedding, adam, batch_of(step, dist.get_rank()))
    adam.param_groups[0]["lr"] = 0.05
    dcp.save({"tables": peergraph.EmbeddingState(adam)}, checkpoint_id=folder)
    # Steps on the same batches on any number of ranks.
    for step in range(3, 6):
        train_step(embedding, adam, batch_of(step))
    return embedding.table.read()


def _loads(device: str, folder: str) -> torch.Tensor:
    embedding, adam = _make(device)
    train_step(embedding, adam, batch_of(0, dist.get_rank() + 7))
    state = {"tables": peergraph.EmbeddingState(adam)}
    dcp.load(state, checkpoint_id=folder)
    assert adam.param_groups[0]["lr"] == 0.05
    for step in range(3, 6):
        train_step(embedding, adam, batch_of(step))
    return embedding.table.read()


def test_checkpoints_load_into_other_numbers_of_ranks_and_machines(tmp_path: Path) -> None:
    (saved, *_) = run_on_hosts(_saves, "abb", "cpu", str(tmp_path))
    for hosts in ("aabb", "a"):
        for loaded in run_on_hosts(_loads, hosts, "cpu", str(tmp_path)):
            torch.testing.assert_close(loaded, saved)
    entries = dcp.FileSystemReader(tmp_path).read_metadata().state_dict_metadata
    for name in ("weight", "exp_avg", "exp_avg_sq"):
        chunks: Any = entries[f"tables.table0.0.{name}"]
        sizes = [chunk.sizes[0] for chunk in chunks.chunks]
        assert (len(sizes), sum(sizes)) == (3, ROWS)  # an equal part of each rank, each row once


def _trains_and_saves(device: str, folder: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    return _trains(device), _saves(device, folder)


def _trains_and_loads(device: str, folder: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    return _trains(device), _loads(device, folder)


@pytest.mark.gpus(2)
def test_rows_are_those_of_one_machine_and_checkpoints_load_on_gpus(tmp_path: Path) -> None:
    """Once for each number of machines: processes take longer to start on GPUs than to train."""
    actual, (saved, *_) = zip(
        *run_on_hosts(_trains_and_saves, "ab", "cuda", str(tmp_path), device="cuda"), strict=True
    )
    expected, (loaded, *_) = zip(
        *run_on_hosts(_trains_and_loads, "aa", "cuda", str(tmp_path), device="cuda"), strict=True
    )
    _assert_equal(actual, expected)
    torch.testing.assert_close(loaded, saved)


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(TypeError, match="expected embeddings or optimizers"):
        peergraph.EmbeddingState(torch.nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one"):
        peergraph.EmbeddingState()
