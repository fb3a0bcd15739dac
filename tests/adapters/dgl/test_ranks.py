"""DGL graphs shared by several ranks, each going at its own pace."""

from __future__ import annotations

from typing import Any

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.graphs import assert_same_graph, random_graph, random_hetero

# isort: split

import dgl
import torch
import torch.distributed as dist
from dgl.dataloading import DataLoader, NeighborSampler

import peergraph_dgl
from peergraph.memory import Group
from peergraph.testing import run_ranks

pytestmark = pytest.mark.usefixtures("one_thread_a_rank")


def _check_share(device: str) -> None:
    group = Group.current(device=device)
    for make in (random_graph, random_hetero):
        for plan in ("auto", "replicated", "sharded", "host"):
            # What another rank than 0 passes is not used.
            own = make() if group.rank == 0 else "something"
            shared = peergraph_dgl.share(own, plan=plan, device=device)
            assert_same_graph(shared, make())
            store = peergraph_dgl.store_of(shared)
            group.barrier()
            store.close()


def _check_writes(device: str) -> None:
    """Rows that one rank writes are there for all; a new column is a rank's own."""
    group = Group.current(device=device)
    shared = peergraph_dgl.share(random_graph() if group.rank == 0 else None, device=device)
    group.barrier()
    shared.ndata["x"][[10 + group.rank]] = torch.full((1, 5), float(group.rank))
    shared.ndata["mine"] = torch.full((60,), group.rank)
    group.barrier()
    world_size = group.world_size
    assert shared.ndata["x"][10 : 10 + world_size, 0].tolist() == list(range(world_size))
    assert int(shared.ndata["mine"][0]) == group.rank
    group.barrier()


def _check_pace(device: str) -> None:
    """Different numbers of batches: no collective may hide in a loader."""
    g = random_graph()
    group = Group.current(device=device)
    shared = peergraph_dgl.share(g if group.rank == 0 else None, device=device)
    duck = peergraph_dgl.from_store(peergraph_dgl.store_of(shared), edges=True)
    sampler = NeighborSampler([3, 2], prefetch_node_feats=["x"])
    seeds = torch.arange(15 * (group.rank + 1))
    for graph in (shared, duck):
        for inputs, _, blocks in DataLoader(graph, seeds, sampler, batch_size=6, device="cpu"):
            assert torch.equal(blocks[0].srcdata["x"], g.ndata["x"][inputs])
    assert torch.equal(
        torch.stack(duck.find_edges(torch.arange(400))), torch.stack(g.edges(order="eid"))
    )
    group.barrier()


def _check_ddp(device: str) -> list[int]:
    """``use_ddp`` splits the seeds; every seed comes once."""
    group = Group.current(device=device)
    shared = peergraph_dgl.share(random_graph() if group.rank == 0 else None, device=device)
    duck = peergraph_dgl.from_store(peergraph_dgl.store_of(shared))
    for graph in (shared, duck):
        loader = DataLoader(
            graph,
            torch.arange(60),
            NeighborSampler([2]),
            device="cpu",
            batch_size=7,
            shuffle=True,
            use_ddp=True,
        )
        done = [int(node) for _, outputs, _ in loader for node in outputs]
        everyone = [node for nodes in group.all_gather(done) for node in nodes]
        assert sorted(everyone) == list(range(60))
    return done


def _check_errors(device: str) -> None:
    """What is wrong with rank 0's graph is raised on all ranks, in the same words."""
    group = Group.current(device=device)
    grown = random_graph()
    grown.ndata["x"].requires_grad_()
    odd = random_graph()
    odd.function = lambda: 0
    cases: list[tuple[Any, type[Exception], str]] = [
        ("no graph", TypeError, "DGLGraph on rank 0"),
        (grown, NotImplementedError, "gradients"),
        (odd, Exception, "lambda"),
    ]
    for case, error, message in cases:
        with pytest.raises(error, match=message) as info:
            peergraph_dgl.share(case if group.rank == 0 else None, device=device)
        assert len(set(group.all_gather(str(info.value)))) == 1


def _train(device: str) -> list[float]:
    """DDP on batches of DGL's loader: the loss falls, and the models stay equal."""
    group = Group.current(device=device)
    g = random_graph()
    g.ndata["label"] = (g.ndata["x"][:, 0] > 0).long()
    shared = peergraph_dgl.share(g if group.rank == 0 else None, device=device)
    torch.manual_seed(7)
    conv = dgl.nn.SAGEConv(5, 2, "mean")
    model = torch.nn.parallel.DistributedDataParallel(conv)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    sampler = NeighborSampler([4], prefetch_node_feats=["x"], prefetch_labels=["label"])
    loader = DataLoader(shared, torch.arange(60), sampler, use_ddp=True, batch_size=15)
    losses = []
    for _ in range(15):
        for _, _, (block,) in loader:
            out = model(block, block.srcdata["x"])
            loss = torch.nn.functional.cross_entropy(out, block.dstdata["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    dist.barrier()
    return [losses[0], losses[-1], float(conv.fc_neigh.weight.sum())]


def _check_all(device: str) -> None:
    for check in (_check_share, _check_writes, _check_pace, _check_ddp, _check_errors):
        check(device)


def test_ranks() -> None:
    run_ranks(_check_all, 2, "cpu")


@pytest.mark.parametrize(
    "world_size", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (1, 2, 4)]
)
def test_ranks_on_gpus(world_size: int) -> None:
    """Tables on GPUs, batches asked for on the CPU."""
    checks = _check_share if world_size == 1 else _check_all
    run_ranks(checks, world_size, "cuda", device="cuda")


def test_training() -> None:
    first, second = run_ranks(_train, 2, "cpu")
    assert first[1] < 0.7 * first[0]
    assert first[2] == second[2]


def test_rows_go_straight_to_the_gpu(device: torch.device) -> None:
    """A column, and a storage of it, of CPU ranks and of GPU ranks, to either device."""
    g = random_graph()
    shared = peergraph_dgl.share(g, device=device)
    targets = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    ids = torch.tensor([5, 59, 5])
    for name in ("x", "half", "train"):
        for target in targets:
            for near in targets:
                rows = shared.get_node_storage(name, "_N").fetch(ids.to(near), target, True).wait()
                assert rows.device.type == target
                assert torch.equal(rows.cpu(), g.ndata[name][ids])
                storage = peergraph_dgl.TableStorage(peergraph_dgl.store_of(shared), name)
                rows = storage.fetch(ids.to(near), target).wait()
                assert torch.equal(rows.cpu(), g.ndata[name][ids])
