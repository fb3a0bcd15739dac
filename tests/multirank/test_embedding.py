"""Embeddings trained by several ranks: the same as one process on the union of their batches."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import peergraph
from peergraph import PeerLostError, optim
from peergraph.memory import Group, Table, Tiers
from peergraph.memory.table.partitions import Partitions
from peergraph.memory.training.rounds import Rounds
from peergraph.memory.training.trained_table import TrainedTable, owned_tiers
from peergraph.store import Store
from peergraph.testing import run_ranks
from tests.store.trained import (
    KINDS,
    ROWS,
    WIDTH,
    TorchTwin,
    assert_close,
    batch_of,
    first_rows,
    loss_of,
    make_store,
    train_step,
)

# (ranks, device): several ranks may share one GPU.
PLACES = [
    pytest.param(2, "cpu", id="2-cpu"),
    pytest.param(3, "cpu", id="3-cpu"),
    pytest.param(2, "cuda", id="2-on-a-gpu", marks=pytest.mark.gpus(1)),
    pytest.param(2, "cuda", id="2-gpus", marks=pytest.mark.gpus(2)),
    pytest.param(4, "cuda", id="4-gpus", marks=pytest.mark.gpus(4)),
]
TWO_RANKS = [PLACES[0], PLACES[3]]


def _union(group: Group, step: int) -> list[tuple[torch.Tensor, ...]]:
    return [batch_of(step, rank) for rank in range(group.world_size)]


def _every_plan_and_optimizer() -> None:
    group = Group.current(timeout=60)
    with make_store(group.device, "sharded", group=group) as store:
        combinations = [*zip(("replicated", "sharded", "host"), KINDS, strict=True)]
        combinations += [("sharded", KINDS[0]), ("replicated", KINDS[2])]
        for number, (plan, (ours, theirs, arguments)) in enumerate(combinations):
            embedding = peergraph.Embedding(
                store,
                WIDTH,
                node_type="a",
                name=str(number),
                plan=plan,
                init=first_rows() if group.rank == 1 else None,
            )
            optimizer = ours(embedding, **arguments)
            twin = TorchTwin(first_rows(), theirs, arguments)
            for step in range(8):
                train_step(embedding, optimizer, batch_of(step, group.rank))
                twin.step(_union(group, step), scale=1 / group.world_size)
            assert_close(embedding.table.read(), twin.weight)
            group.barrier()


@pytest.mark.parametrize(("ranks", "device"), PLACES)
def test_matches_one_process(ranks: int, device: str) -> None:
    run_ranks(_every_plan_and_optimizer, ranks, device=device)


def _details(expected: torch.Tensor) -> None:
    group = Group.current(timeout=60)
    first, second = (
        peergraph.Embedding(group, WIDTH, num_embeddings=ROWS, plan=plan, init=first_rows())
        for plan in ("sharded", "replicated")
    )
    # Two tables in one optimizer; the sum of gradients; ranks without gradients; growing batches.
    optimizer = optim.SparseAdam([first, second], lr=0.1, reduce="sum")
    twins = [TorchTwin(first_rows(), torch.optim.SparseAdam, {"lr": 0.1}) for _ in range(2)]
    for step in range(6):
        optimizer.zero_grad()
        batches = [_batch(step, rank) for rank in range(group.world_size)]
        if step % group.world_size != group.rank:
            ids, target = batches[group.rank]
            loss_of(first(ids), target.to(group.device)).backward()
            if step != 2:
                loss_of(second(ids), target.to(group.device)).backward()
        optimizer.step()
        present = [b for r, b in enumerate(batches) if step % group.world_size != r]
        twins[0].step(present)
        if step != 2:
            twins[1].step(present)
    assert_close(first.table.read(), twins[0].weight)
    assert_close(second.table.read(), twins[1].weight)
    group.barrier()
    # All replicas have the same bits.
    assert len({t.numpy().tobytes() for t in group.all_gather(second.table.read())}) == 1
    # What one rank draws, all have; and it does not depend on the number of ranks.
    torch.manual_seed(3 if group.rank == 0 else group.rank)
    drawn = peergraph.Embedding(group, 500, num_embeddings=20_000)
    assert torch.equal(drawn.table.read()[::499], expected)
    group.barrier()
    for embedding in (first, second, drawn):
        embedding.close()


def _batch(step: int, rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    ids = torch.randint(ROWS, (1 + 30 * step,), generator=generator)
    return ids, torch.randn((len(ids), WIDTH), generator=generator)


@pytest.mark.parametrize(("ranks", "device"), PLACES)
def test_details(ranks: int, device: str) -> None:
    torch.manual_seed(3)
    alone = peergraph.Embedding(Group.current(device="cpu"), 500, num_embeddings=20_000)
    run_ranks(_details, ranks, alone.table.read()[::499].clone(), device=device)


def _beside_ddp() -> None:
    group = Group.current(timeout=60)
    device = group.device
    torch.manual_seed(group.rank)
    embedding = peergraph.Embedding(group, WIDTH, num_embeddings=ROWS, init=first_rows())
    # The module inside the model that DDP has, too.
    whole = torch.nn.Sequential(embedding, torch.nn.Linear(WIDTH, 1).to(device))
    model = DistributedDataParallel(whole)
    dense = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = optim.SparseSGD(embedding, lr=0.1)
    plain = torch.nn.Linear(WIDTH, 1)
    plain.load_state_dict({n: v.cpu() for n, v in whole[1].state_dict().items()})
    twin = TorchTwin(first_rows(), torch.optim.SGD, {"lr": 0.1})
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(5):
        ids = torch.arange(step, ROWS - group.rank, 2)
        for optimizer in (dense, sparse):
            optimizer.zero_grad()
        model(ids).pow(2).mean().backward()
        dense.step()
        sparse.step()
        reference.zero_grad()
        twin.optimizer.zero_grad()
        for rank in range(group.world_size):
            ids = torch.arange(step, ROWS - rank, 2)
            (plain(twin.module(ids)).pow(2).mean() / group.world_size).backward()
        reference.step()
        twin.optimizer.step()
    assert_close(embedding.table.read(), twin.weight)
    assert_close(whole[1].weight.detach().cpu(), plain.weight.detach())
    embedding.close()


@pytest.mark.parametrize(("ranks", "device"), TWO_RANKS)
def test_beside_distributed_data_parallel(ranks: int, device: str) -> None:
    run_ranks(_beside_ddp, ranks, device=device)


def _saves(folder: str) -> None:
    group = Group.current(timeout=60)
    twin = TorchTwin(first_rows(), torch.optim.SparseAdam, {"lr": 0.1})
    with make_store(group.device, group=group) as store:
        embedding = peergraph.Embedding(
            store, WIDTH, node_type="a", plan="sharded", init=first_rows()
        )
        optimizer = optim.SparseAdam(embedding, lr=0.1)
        for step in range(4):
            train_step(embedding, optimizer, batch_of(step, group.rank))
            twin.step(_union(group, step), scale=1 / group.world_size)
        store.save(folder)
        states = optimizer.state_dict()
    with Store.load(folder, group=group) as store:
        embedding = store.embeddings["a", "embedding"]
        optimizer = optim.SparseAdam(embedding, lr=0.1)
        for name in ("exp_avg", "exp_avg_sq"):
            now = optimizer.state_dict()["state"][0][name]
            assert torch.equal(now, states["state"][0][name])
        for step in range(4, 8):
            train_step(embedding, optimizer, batch_of(step, group.rank))
            twin.step(_union(group, step), scale=1 / group.world_size)
        assert_close(embedding.table.read(), twin.weight)
        group.barrier()


def _uneven() -> None:
    group = Group.current(timeout=60)
    embedding = peergraph.Embedding(group, WIDTH, num_embeddings=ROWS, init=first_rows())
    model = DistributedDataParallel(torch.nn.Linear(WIDTH, 1, bias=False).to(group.device))
    torch.nn.init.ones_(model.module.weight)
    sparse = optim.SparseSGD(embedding, lr=0.1)
    twin = TorchTwin(first_rows(), torch.optim.SGD, {"lr": 0.1})
    steps = [2 + 2 * r for r in range(group.world_size)]
    with Join([model, sparse]):
        for _ in range(steps[group.rank]):
            sparse.zero_grad()
            model(embedding(torch.arange(group.rank, ROWS))).sum().backward()
            sparse.step()
    for step in range(max(steps)):
        twin.optimizer.zero_grad()
        for rank in (r for r in range(group.world_size) if step < steps[r]):
            (twin.module(torch.arange(rank, ROWS)).sum() / group.world_size).backward()
        twin.optimizer.step()
    assert_close(embedding.table.read(), twin.weight)
    embedding.close()


@pytest.mark.parametrize(("ranks", "device"), TWO_RANKS)
def test_ranks_with_more_batches_than_others(ranks: int, device: str) -> None:
    run_ranks(_uneven, ranks, device=device)


@pytest.mark.parametrize(("ranks", "device"), TWO_RANKS)
def test_saved_and_restored(ranks: int, device: str, tmp_path: Path) -> None:
    run_ranks(_saves, ranks, str(tmp_path / "store"), device=device)


def _mixed_tiers_and_copies() -> None:
    """Rows of one table on all tiers, and shards in several copies."""
    group = Group.current(timeout=60)
    world = group.world_size
    everything = tuple(range(world))
    twice = Partitions("test", (everything,) * world, tuple((g,) * world for g in everything))
    for partitions in (None, twice):
        tiers = owned_tiers(Tiers(8, 19, 10), world)
        assert tiers.replicated % world == 0
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(4)).to(group.device)
        table = Table.create(
            (ROWS, WIDTH), torch.float32, tiers, group, order=order, partitions=partitions
        )
        if group.rank == 0:
            table.load(first_rows())
        trained = TrainedTable(table)
        state = trained.new_state(0.0)
        group.barrier()
        optimizer = _SteppedByHand(trained, [state])
        twin = TorchTwin(first_rows(), torch.optim.Adagrad, {"lr": 0.5})
        for step in range(4):
            optimizer.step(*batch_of(step, group.rank))
            twin.optimizer.zero_grad()
            for ids, grads in _union(group, step):
                twin.module(ids).backward(grads)
            twin.optimizer.step()
        assert_close(table.read(), twin.weight)
        group.barrier()
        state.close()
        table.close()


class _SteppedByHand:
    def __init__(self, trained: TrainedTable, states: list[Table]) -> None:
        from peergraph.memory.training.exchange import Exchange

        self.trained, self.states = trained, states
        self.exchange = Exchange(trained.group, [(trained.width, trained.accumulator)])

    def step(self, ids: torch.Tensor, grads: torch.Tensor) -> None:
        import peergraph._C as _C

        outgoing = self.trained.outgoing([ids], [grads])
        (incoming,) = self.exchange.send([outgoing])
        rule = _C.UpdateRule(optimizer=_C.Optimizer.adagrad, step_size=0.5, eps=1e-10)
        assert incoming is not None
        self.trained.update(incoming, rule, self.states)
        self.exchange.wait()


@pytest.mark.parametrize(("ranks", "device"), PLACES)
def test_mixed_tiers_and_copies_of_shards(ranks: int, device: str) -> None:
    run_ranks(_mixed_tiers_and_copies, ranks, device=device)


def _failures() -> None:
    group = Group.current(timeout=60)
    embedding = peergraph.Embedding(group, WIDTH, num_embeddings=ROWS, init=first_rows())
    optimizer = optim.SparseSGD(embedding, lr=0.1)
    if group.rank == 0:
        embedding.pending.append((torch.tensor([ROWS]), torch.zeros(1, WIDTH)))
    error, match = (IndexError, "id 37") if group.rank == 0 else (RuntimeError, "rank 0 failed")
    with pytest.raises(error, match=match):
        optimizer.step()
    assert torch.equal(embedding.table.read(), first_rows())
    # And it goes on from there.
    train_step(embedding, optimizer, batch_of(0))
    assert not torch.equal(embedding.table.read(), first_rows())
    with pytest.raises(ValueError, match="creates a table"):
        peergraph.Embedding(group, 3 + group.rank, num_embeddings=ROWS)
    embedding.close()


@pytest.mark.parametrize(("ranks", "device"), TWO_RANKS)
def test_errors_come_to_all_ranks(ranks: int, device: str) -> None:
    run_ranks(_failures, ranks, device=device)


def _rounds() -> None:
    group = Group.current(timeout=60)
    rounds = Rounds(group, 3)
    for i in range(200):
        told = rounds.exchange([group.rank, i, -i])
        assert told == [[r, i, -i] for r in range(group.world_size)]
        assert rounds.exchange() == [[]] * group.world_size
    rounds.close()


def test_rounds() -> None:
    run_ranks(_rounds, 3)


def _dies() -> Any:
    group = Group.current(timeout=60, watch=False)
    rounds = Rounds(group, 1)
    rounds.exchange([1])
    if group.rank == 1:
        os._exit(3)
    with pytest.raises(PeerLostError, match="rank 1 died"):
        rounds.exchange([2])
    return "raised"


def _late() -> None:
    group = Group.current(timeout=60)
    rounds = Rounds(group, 1)
    dist.barrier()
    group.timeout = 2
    if group.rank == 0:
        start = time.monotonic()
        with pytest.raises(PeerLostError, match="rank 1 did not join within 2 s"):
            rounds.exchange([2])
        assert time.monotonic() - start < 20
    dist.barrier()


def test_lost_ranks() -> None:
    assert run_ranks(_dies, 2, may_die=[1])[0] == "raised"
    run_ranks(_late, 2)
