"""Run by test_network_namespaces.py on two machines with a network between them.

Counts what crosses the network while the graph is sent, and while batches are read.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from network.two_machines import FIRST, run_on_two_machines, why_not

from peergraph.memory import Group
from peergraph.sampling import NeighborSampler
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Store

NODES, COLUMNS = 4000, 64


def sent_bytes() -> int:
    """By this machine, since it started."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    fields = {line.split(":")[0].strip(): line.split(":")[1].split() for line in lines}
    return sum(int(values[8]) for name, values in fields.items() if name != "lo")


def main(rank: int) -> None:
    """The work of the rank of one machine."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{FIRST}:29400", rank=rank, world_size=2)
    group = Group.current(device="cpu", timeout=60)
    assert group.machines.ranks == ((0,), (1,)), group.machines
    random = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, COLUMNS, generator=random)
    edges = torch.randint(NODES, (2, 20_000), generator=random)
    source = GraphSource({NODE: NODES}, {EDGE: EdgeSource(coo=edges)}, {NODE: {"x": x}})
    dist.barrier()
    begin = sent_bytes()
    store = Store.build(source if rank == 0 else None, group=group)
    dist.barrier()
    built = sent_bytes() - begin
    size = x.nbytes + edges.nbytes
    # All of it once, with the headers of its packets; the other machine acknowledges.
    assert size < built < 1.1 * size + 50_000 if rank == 0 else built < size / 5, built
    sampler, table = NeighborSampler(store, [5, 5]), store.node_table("x")
    begin, end, batches = sent_bytes(), time.monotonic() + 1.5, 0
    while time.monotonic() < end:
        nodes = sampler.sample(torch.arange(rank, NODES, 2), batches).nodes[NODE]
        assert torch.equal(table.gather(nodes), x[nodes])
        batches += 1
    # Signs of life: 500 bytes a second and less.
    assert sent_bytes() - begin < 10_000, sent_bytes() - begin
    dist.barrier()
    print(f"rank {rank}: {built} bytes for a graph of {size}, {batches} batches", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if reason := why_not():
        sys.exit(print(reason, file=sys.stderr) or 2)
    done = run_on_two_machines(main, timeout_s=240)
    print(done.stdout)
    print(done.stderr, file=sys.stderr)
    sys.exit(done.returncode)
