"""Run by test_restart.py as the agent of a machine: a rank is killed once, and comes back.

Afterwards each rank trains again without a failure and compares.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from peergraph.integration import StatefulLoader
from peergraph.memory import Group
from peergraph.sampling import NeighborSampler, next_seed
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Store

NODES, EPOCHS = 90, 2
VICTIM, LAST_EPOCH, LAST_BATCH = 2, 1, 2


def make_store(group: Group) -> Store:
    """From a graph that the first rank alone has."""
    source = None
    if group.machines.rank == 0:
        random = torch.Generator().manual_seed(0)
        edges = EdgeSource(coo=torch.randint(NODES, (2, 900), generator=random))
        x = torch.randn(NODES, 4, generator=random)
        source = GraphSource({NODE: NODES}, {EDGE: edges}, {NODE: {"x": x}})
    return Store.build(source, group=group)


class Training:
    """A model, and batches of the sums of sampled neighbours' features."""

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self._x = store.node_table("x")
        self._sampler = NeighborSampler(store, [3])
        torch.manual_seed(0)
        self.model = DistributedDataParallel(torch.nn.Linear(4, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        seeds = torch.arange(rank, NODES, world_size)
        loader: Any = DataLoader(seeds, 7, shuffle=True, collate_fn=self._batch)  # type: ignore[arg-type]
        self.loader = StatefulLoader(loader, seed=3)
        self.batches: list[torch.Tensor] = []

    def _batch(self, seeds: list[torch.Tensor]) -> torch.Tensor:
        return self._sampler.sample(torch.stack(seeds), next_seed()).nodes[NODE]

    def step(self, nodes: torch.Tensor) -> None:
        """One step of the optimizer."""
        self.batches.append(nodes)
        torch.rand(3)  # the training's own numbers do not change batches
        self.optimizer.zero_grad()
        self.model(self._x.gather(nodes)).square().mean().backward()
        self.optimizer.step()

    def save(self, path: Path) -> None:
        """Writes a checkpoint."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
        }
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)

    def load(self, path: Path) -> None:
        """Goes on where a checkpoint was written."""
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])


def main(folder: Path, host: str) -> None:
    """The work of one rank."""
    os.environ.update(PEERGRAPH_HOSTID=host, GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group = Group.current(device="cpu", timeout=60)
    assert sorted(map(len, group.machines.ranks)) == [1, 2], group.machines
    rank, checkpoint = dist.get_rank(), folder / "checkpoint"
    # Not TORCHELASTIC_RESTART_COUNT: each machine's launcher counts the failures of its own ranks.
    has_failed = checkpoint.exists()
    store = make_store(group)
    training = Training(store, rank, dist.get_world_size())
    if has_failed:
        training.load(checkpoint)
    first = training.loader.state_dict()
    for epoch in range(first["epoch"], EPOCHS):
        for nodes in training.loader:
            training.step(nodes)
            if rank == 0:
                training.save(checkpoint)
            dist.barrier()
            state = training.loader.state_dict()
            is_last = (epoch, state["batch"]) == (LAST_EPOCH, LAST_BATCH)
            if rank == VICTIM and is_last and not has_failed:
                os.kill(os.getpid(), signal.SIGKILL)
    expected = Training(store, rank, dist.get_world_size())
    for _ in range(EPOCHS):
        for nodes in expected.loader:
            expected.step(nodes)
    done = len(training.batches)
    assert (first["epoch"], first["batch"]) == (LAST_EPOCH, LAST_BATCH)
    assert all(map(torch.equal, training.batches, expected.batches[-done:]))
    for mine, theirs in zip(training.model.parameters(), expected.model.parameters(), strict=True):
        # To rounding: DistributedDataParallel orders its sums anew after the first step.
        torch.testing.assert_close(mine, theirs)
    (folder / f"rank{rank}").touch()
    dist.barrier()
    dist.destroy_process_group()


def launch(endpoint: str, host: str, ranks: int, folder: Path) -> None:
    """What torchrun does on a machine, with ranks that are forked from a process of one thread."""
    # Else ranks find the addresses of the first attempt in the agent's store.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    config = LaunchConfig(
        min_nodes=2,
        max_nodes=2,
        nproc_per_node=ranks,
        run_id="1",
        rdzv_backend="c10d",
        rdzv_endpoint=endpoint,
        rdzv_configs={"is_host": host == "host-a"},
        local_addr="127.0.0.1",
        max_restarts=1,
        start_method="forkserver",
        # No files of errors: torch's agent ends if it reads one that a rank is still writing.
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )
    # Not this module's, which is __main__ here.
    from tests.machines.restarted_training import main as importable

    elastic_launch(config, importable)(folder, host)


if __name__ == "__main__":
    launch(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
