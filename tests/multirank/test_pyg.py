"""PyG data shared by several ranks."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
import torch_geometric.transforms as T
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader, NodeLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.sampler import NeighborSampler

import peergraph_pyg
from peergraph.memory import Group
from peergraph.testing import run_ranks
from peergraph.testing.starting import context_of
from peergraph_pyg import StoreTensor
from tests.adapters.pyg.graphs import check_batch, check_fanouts, random_data, random_hetero
from tests.places import cpu_and_gpus


def _check_plans(device: str) -> None:
    for plan in ("auto", "replicated", "sharded", "host"):
        _check_share(plan, device)


def _check_share(plan: str, device: str) -> None:
    """Rank 0 alone has the graph; every rank loads its part of the seeds."""
    data = random_data()
    group = Group.current(device=device)
    own = copy.copy(data) if group.rank == 0 else None
    shared = peergraph_pyg.share(own, plan=plan, device=device)
    assert type(shared) is Data
    assert repr(shared) == repr(data)
    assert shared.name == "random"
    assert torch.equal(shared.x.cpu(), data.x)
    assert torch.equal(shared.edge_index.cpu(), data.edge_index)
    seeds = torch.arange(group.rank, data.num_nodes, group.world_size)
    batches = list(NeighborLoader(shared, [3, 2], input_nodes=seeds, batch_size=7))
    for batch in batches:
        check_batch(batch, data)
        check_fanouts(batch, data, [3, 2])
    store = peergraph_pyg.store_of(shared)
    group.barrier()
    store.close()
    done = torch.cat([batch.n_id[: batch.batch_size] for batch in batches]).tolist()
    everyone = [node for nodes in group.all_gather(done) for node in nodes]
    assert sorted(everyone) == list(range(60))


def test_share() -> None:
    run_ranks(_check_plans, 2, "cpu")


def _check_shared_again(device: str) -> None:
    """Every rank transforms what it has, by random numbers of its own; rank 0's is shared."""
    group = Group.current(device=device)
    first = peergraph_pyg.share(random_data() if group.rank == 0 else None, device=device)
    torch.manual_seed(group.rank)
    train, _, test = T.RandomLinkSplit()(T.ToUndirected()(first))
    of_rank_0 = group.broadcast((train.edge_index.cpu(), test.edge_label_index.cpu()))
    assert torch.equal(train.edge_index.cpu(), of_rank_0[0]) == (group.rank == 0)
    second = peergraph_pyg.share(train, device=device)
    third = peergraph_pyg.share(test, device=device)
    peergraph_pyg.store_of(first).close()
    assert torch.equal(second.edge_index.cpu(), of_rank_0[0])
    assert torch.equal(third.edge_label_index.cpu(), of_rank_0[1])
    with pytest.raises(ValueError, match="shared already"):
        peergraph_pyg.share(second, device=device)
    x = random_data().x
    for data in (second, third):
        for batch in NeighborLoader(data, [3, 2], batch_size=7, shuffle=True):
            assert torch.equal(batch.x.cpu(), x[batch.n_id.cpu()])
    group.barrier()
    for data in (second, third):
        peergraph_pyg.store_of(data).close()


def _check_without_tensors(device: str) -> None:
    group = Group.current(device=device)
    local_source = Data(num_nodes=100) if group.rank == 0 else None
    shared = peergraph_pyg.share(local_source, device=device)
    seeds = [batch.n_id for batch in NeighborLoader(shared, [2], batch_size=30)]
    assert torch.equal(torch.cat(seeds).cpu(), torch.arange(100))
    group.barrier()
    peergraph_pyg.store_of(shared).close()


def test_share_again() -> None:
    run_ranks(_check_shared_again, 2, "cpu")


def test_share_without_tensors() -> None:
    run_ranks(_check_without_tensors, 2, "cpu")


@pytest.mark.gpus(2)
def test_share_again_on_gpus() -> None:
    run_ranks(_check_shared_again, 2, "cuda")
    run_ranks(_check_without_tensors, 2, "cuda")


@pytest.mark.parametrize(
    "world_size", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (1, 2, 4)]
)
def test_share_on_gpus(world_size: int) -> None:
    run_ranks(_check_plans, world_size, "cuda", device="cuda")


def _check_hetero(device: str) -> None:
    data = random_hetero()
    group = Group.current(device=device)
    # Data of another rank than 0 is not used.
    own = data if group.rank == 0 else random_data()
    shared = peergraph_pyg.share(own, device=device)
    assert shared.metadata() == data.metadata()
    loader = NeighborLoader(shared, [2, 2], input_nodes="paper", batch_size=8)
    for batch in loader:
        assert torch.equal(batch["paper"].x.cpu(), data["paper"].x[batch["paper"].n_id.cpu()])
    features, _ = peergraph_pyg.stores(peergraph_pyg.store_of(shared))
    new = torch.arange(25.0) + 100 * group.rank
    features["author", "h", None] = new
    assert features["author", "h", None].tolist() == list(range(25))
    group.barrier()
    if group.rank == 1:
        features["author", "h", torch.tensor([3])] = torch.tensor([-1.0], device=group.device)
    group.barrier()
    assert float(features["author", "h", 3]) == -1
    group.barrier()


def _check_writes(device: str) -> None:
    group = Group.current(device=device)
    shared = peergraph_pyg.share(random_data() if group.rank == 0 else None, device=device)
    group.barrier()
    shared.x[torch.tensor([10 + group.rank])] = float(group.rank)
    group.barrier()
    assert torch.equal(shared.x[10:12].cpu(), torch.tensor([[0.0] * 5, [1.0] * 5]))
    group.barrier()


def _check_errors(device: str) -> None:
    """What is wrong with rank 0's data is raised on all ranks, in the same words."""
    group = Group.current(device=device)
    cases: list[tuple[Any, type[Exception], str]] = [
        ("no data", TypeError, "Data or HeteroData on rank 0"),
        (Data(x=torch.rand(3, 1, requires_grad=True)), NotImplementedError, "gradients"),
        (Data(x=torch.rand(3, 1), edge_index=torch.tensor([[0], [7]])), Exception, "7"),
        (Data(x=torch.rand(3, 1), function=lambda: 0), Exception, "lambda"),
    ]
    for case, error, message in cases:
        with pytest.raises(error, match=message) as info:
            peergraph_pyg.share(case if group.rank == 0 else None, device=device)
        assert len(set(group.all_gather(str(info.value)))) == 1


def _check_uneven_loaders(device: str) -> None:
    """Different numbers of batches: no collective may hide in a loader."""
    data = random_data()
    group = Group.current(device=device)
    shared = peergraph_pyg.share(data if group.rank == 0 else None, device=device)
    seeds = torch.arange(20 + 25 * group.rank)
    for workers in (0, 2):
        for batch in NeighborLoader(
            shared, [3, 2], input_nodes=seeds, batch_size=5, num_workers=workers
        ):
            check_batch(batch, data)
    for batch in LinkNeighborLoader(shared, [2], batch_size=100, neg_sampling="triplet"):
        check_batch(batch, data)
    group.barrier()


def _check_matrices_and_directions(device: str) -> None:
    """Edges as a matrix of rank 0, and lists of out-neighbours, which all ranks make together."""
    group = Group.current(device=device)
    data = random_data()
    order = data.edge_index[1].argsort(stable=True)
    ends = data.edge_index[:, order]
    own = Data(x=data.x, edge_attr=data.edge_attr[order])
    pointers = torch.searchsorted(ends[1].contiguous(), torch.arange(61))
    values = torch.arange(400.0)
    own.adj_t = torch.sparse_csr_tensor(pointers, ends[0], values, (60, 60), check_invariants=False)
    shared = peergraph_pyg.share(own if group.rank == 0 else None, plan="sharded", device=device)
    assert shared.adj_t.layout is torch.sparse_csr
    for batch in NeighborLoader(shared, [3, 2], batch_size=20):
        e_id, n_id = batch.e_id.cpu(), batch.n_id.cpu()
        result = batch.adj_t.to_sparse_coo()
        assert sorted(result._values().tolist()) == sorted(values[e_id].tolist())
        row, col = n_id[result._indices().cpu()]
        entries = result._values().cpu().long()
        assert torch.equal(torch.stack([col, row]), ends[:, entries])
    backward = NeighborSampler(shared, [-1], sample_direction="backward")
    for batch in NodeLoader(shared, backward, torch.arange(60), batch_size=20):
        assert torch.equal(
            batch.e_id.cpu().sort().values,
            torch.isin(ends[0], batch.input_id).nonzero().view(-1),
        )
    group.barrier()
    peergraph_pyg.store_of(shared).close()


def _check_rest(device: str) -> None:
    checks = (_check_hetero, _check_writes, _check_errors, _check_uneven_loaders)
    for check in (*checks, _check_matrices_and_directions):
        check(device)


@cpu_and_gpus(2)
def test_other_uses(device_type: str) -> None:
    run_ranks(_check_rest, 2, device_type, device=device_type)


def _train(device: str) -> list[float]:
    """Two ranks, DDP: the loss must fall and the models stay equal."""
    group = Group.current(device=device)
    data = random_data()
    data.y = (data.x[:, 0] > 0).long()
    shared = peergraph_pyg.share(data if group.rank == 0 else None, device=device)
    torch.manual_seed(7)
    conv = SAGEConv(5, 2).to(group.device)
    model = torch.nn.parallel.DistributedDataParallel(conv)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    seeds = torch.arange(group.rank, 60, group.world_size)
    losses = []
    for _ in range(10):
        for batch in NeighborLoader(shared, [4], input_nodes=seeds, batch_size=15):
            batch = batch.to(group.device)
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    group.barrier()
    return [losses[0], losses[-1], float(conv.lin_l.weight.sum())]


@cpu_and_gpus(2)
def test_training(device_type: str) -> None:
    first, second = run_ranks(_train, 2, device_type, device=device_type)
    assert first[1] < 0.6 * first[0]
    assert first[2] == second[2]


def _spawned(rank: int, shared: Data, folder: Path) -> None:
    data = random_data()
    assert isinstance(shared.x, StoreTensor)
    seeds = torch.arange(rank, 60, 2)
    for batch in NeighborLoader(shared, [3, 2], input_nodes=seeds, batch_size=10):
        check_batch(batch, data)
    pair = peergraph_pyg.stores(peergraph_pyg.store_of(shared))
    assert next(iter(NeighborLoader(pair, [2], batch_size=3))).batch_size == 3
    shared.mailbox[rank] = 77
    (folder / str(rank)).touch()


def test_handles_go_to_spawned_processes(tmp_path: Path) -> None:
    """`mp.spawn(run, args=(data,))`, as in PyG's own examples."""
    data = random_data()
    data.mailbox = torch.zeros(60)
    shared = peergraph_pyg.share(data, device="cpu")
    context_of("forked")  # The server of forks has PyG imported.
    mp.start_processes(_spawned, (shared, tmp_path), nprocs=2, start_method="forkserver")
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]
    assert shared.mailbox[:3].tolist() == [77, 77, 0]
