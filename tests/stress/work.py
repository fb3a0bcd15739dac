"""What the ranks of a stress run do, stage by stage, until something happens to one of them."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from peergraph.errors import PeerLostError
from peergraph.memory import Group, Table, Tiers
from peergraph.sampling import NeighborSampler
from peergraph.store import Store
from tests.store.graphs import build, homogeneous_source
from tests.stress.scenarios import STAGES, Scenario

NODES = 2000
_ROUNDS = 5
# Less than what the store has, more than what Python writes meanwhile.
_FILE_LIMIT = 16 << 10


class Outcome(NamedTuple):
    """How a rank ended: the class and text of its exception, both empty if there was none."""

    error: str = ""
    message: str = ""
    stage: str = ""


class Rank:
    """The stages of one rank."""

    def __init__(self, scenario: Scenario, folder: str) -> None:
        self.scenario, self.folder = scenario, Path(folder)
        self.group = Group.current(scenario.device, timeout=scenario.patience)
        # On GPUs torch's first collective makes NCCL's connections, which nothing but the end of
        # the process ends where a rank is missing.
        dist.all_reduce(torch.zeros(1, device=self.group.device))
        self.pids = self.group.all_gather(os.getpid())

    def join(self) -> None:
        """More collectives, right away."""
        for number in range(_ROUNDS):
            self.group.all_gather(number)

    def build(self) -> None:
        source = homogeneous_source(NODES, 5 * NODES)
        local_source = source if self.group.rank == 0 else None
        self.store = build(local_source, "mixed", group=self.group)
        self.x = source.node_tables["_N"]["x"]

    def gather(self) -> None:
        table = self.store.node_table("x")
        for _ in range(_ROUNDS):
            ids = torch.randint(NODES, (1000,))
            assert torch.equal(table.gather(ids.to(table.device)).cpu(), self.x[ids])
        self.group.barrier()

    def sample(self) -> None:
        sampler = NeighborSampler(self.store, [5, 5])
        for number in range(_ROUNDS):
            sampler.sample(torch.randint(NODES, (100,)), number)
        self.group.barrier()

    def train(self) -> None:
        """torch's own collectives, in which a rank waits for another one, too."""
        device = self.group.device
        model = DistributedDataParallel(torch.nn.Linear(7, 7).to(device))
        for _ in range(_ROUNDS):
            model(torch.ones(4, 7, device=device)).sum().backward()
        self.group.barrier()

    def save(self) -> None:
        self.store.save(self.folder / "saved")

    def close(self) -> None:
        self.store.close()


def run_stages(scenario: Scenario, folder: str) -> Outcome:
    """Does the stages until something happens to this rank, or it hears of another's."""
    try:
        return _until_something_happens(scenario, folder)
    except PeerLostError as error:  # the watcher raises it at whatever line this rank is
        return Outcome("PeerLostError", str(error), "another line")


def _until_something_happens(scenario: Scenario, folder: str) -> Outcome:
    stage = ""
    rank: Rank | None = None
    try:
        rank = Rank(scenario, folder)
        for stage in STAGES:
            struck = stage == scenario.stage and rank.group.rank == scenario.victim
            if struck:
                scenario.strike()
            getattr(rank, stage)()
            if struck:
                scenario.outlast()
            if struck and scenario.kind == "freeze":
                # It runs again because the others gave the group up, and it must hear of that here:
                # in torch's collectives, which come next, it would wait for ranks that have ended.
                rank.group.barrier()
        rank.group.barrier()
    except Exception as error:
        if rank is None:
            raise
        if rank.group.rank == scenario.victim and scenario.kind == "raise":
            raise SystemExit(1) from None
        if scenario.kind == "freeze":
            os.kill(rank.pids[scenario.victim], signal.SIGCONT)
        elif not isinstance(error, PeerLostError):
            rank.group.barrier()  # torch saw a connection end; this says who died
        return Outcome(type(error).__name__, str(error), stage)
    return Outcome()


def disagree(scenario: Scenario, folder: str) -> Outcome:
    """One rank calls another collective, or the same one with other arguments."""
    group = Group.current(scenario.device, timeout=scenario.patience)
    is_other = group.rank == scenario.victim
    calls: dict[str, Callable[[], object]] = {
        "collectives": group.barrier if is_other else lambda: group.all_gather(7),
        "sources": lambda: group.broadcast(group.rank, src=int(is_other)),
        "plans": lambda: Table.create(
            (10 + is_other, 3), torch.float32, Tiers.all_sharded(10 + is_other), group
        ),
    }
    try:
        got = calls[scenario.stage]()
    except (PeerLostError, ValueError, RuntimeError) as error:
        return Outcome(type(error).__name__, str(error), scenario.stage)
    return Outcome("", f"got {got}", scenario.stage)


def fill_disk(scenario: Scenario, folder: str) -> Outcome:
    """No file may grow beyond a limit, as on a full disk; afterwards everything works again."""
    group = Group.current(scenario.device, timeout=scenario.patience)
    source = homogeneous_source(NODES, 5 * NODES)
    local_source = source if group.rank == 0 else None
    place = Path(folder) / "saved"
    outcome = Outcome("", "nothing was raised", scenario.stage)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limited(call: Callable[[], object]) -> Outcome:
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_LIMIT, hard))
        try:
            call()
        except Exception as error:
            return Outcome(type(error).__name__, str(error), scenario.stage)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return outcome

    if scenario.stage == "build":
        options = {"spill": folder, "host_budget": 60_000, "group": group}
        outcome = limited(lambda: Store.build(local_source, plan="host", **options))
    dist.barrier()
    with build(local_source, "mixed", group=group) as store:
        if scenario.stage == "save":
            outcome = limited(lambda: store.save(place))
            dist.barrier()
            left = [str(path) for path in Path(folder).iterdir()]
            dist.barrier()
            if left:
                return Outcome("", f"{left} is left", scenario.stage)
        store.save(place)
    with Store.load(place, plan="host", group=group) as loaded:
        assert torch.equal(loaded.node_table("x").read(), source.node_tables["_N"]["x"])
    return outcome
