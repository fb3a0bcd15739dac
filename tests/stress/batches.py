"""Many batches of gathers, samples and a loader, each compared with the graph it is taken from."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from peergraph.memory import Group
from peergraph.sampling import NeighborSampler
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource
from tests.store.graphs import build, random_coo
from tests.stress.leftovers import growth_of_process

_NODES, _EDGES, _BATCH = 5000, 40_000, 64
# What allocators may keep from the first tenth of the batches on.
_GROWTH = 64 << 20


def _features(nodes: torch.Tensor) -> torch.Tensor:
    """[nodes, 5]: those of each node, which its id says."""
    return nodes[:, None] * 7.0 + torch.arange(5, device=nodes.device)


def run_batches(count: int, seed: int, device: str) -> str:
    """Half of them by a sampler, half by PyG's loader, if it is there, on every rank. Collective.

    Returns what was wrong, "" if nothing was.
    """
    group = Group.current(device=device)
    coo = random_coo(_NODES, _NODES, _EDGES, seed)
    source = GraphSource.homogeneous(
        _NODES, EdgeSource(coo=coo), {"x": _features(torch.arange(_NODES))}
    )
    with build(source if group.rank == 0 else None, "mixed", group=group) as store:
        generator = torch.Generator().manual_seed(seed * 1000 + group.rank)
        sampler = NeighborSampler(store, [6, 4])
        loader_count = count // 2 if find_spec("torch_geometric") else 0
        plain_count = count - loader_count
        near = coo.to(group.device)

        def batch(number: int) -> str:
            seeds = torch.randint(_NODES, (_BATCH,), generator=generator)
            sample = sampler.sample(seeds, number)
            nodes = sample.nodes[NODE]
            edges = torch.stack([nodes[sample.row[EDGE].long()], nodes[sample.col[EDGE].long()]])
            if not torch.equal(edges, near[:, sample.edge_ids[EDGE]]):
                return f"rank {group.rank}: edges of batch {number} are not the graph's"
            rows = store.node_table("x").gather(nodes)
            if not torch.equal(rows, _features(nodes)):
                return f"rank {group.rank}: rows of batch {number} are not the nodes'"
            return ""

        for number in range(plain_count // 10):
            if wrong := batch(number):
                return wrong
        with growth_of_process() as growth:
            for number in range(plain_count // 10, plain_count):
                if wrong := batch(number):
                    return wrong
        group.barrier()
    if _has_grown(growth):
        return f"rank {group.rank}: grew by {growth}"
    return _loader_batches(loader_count, coo, group) if loader_count else ""


def _has_grown(growth: dict[str, int]) -> bool:
    """Whether files or threads have grown, or memory by more than allocators may keep."""
    return any(count > (_GROWTH if "bytes" in name else 0) for name, count in growth.items())


def _loader_batches(count: int, coo: torch.Tensor, group: Group) -> str:
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    import peergraph_pyg

    data = Data(x=_features(torch.arange(_NODES)), edge_index=coo)
    shared = peergraph_pyg.share(data, device=group.device)
    loader = NeighborLoader(shared, [6, 4], batch_size=_BATCH, shuffle=True)

    def draw(count: int) -> str:
        """Takes batches that a thread makes ahead; the last epoch ends within."""
        done = 0
        while done < count:
            for batch in peergraph_pyg.prefetch(loader):
                ids = batch.n_id.cpu()
                if not torch.equal(batch.x.cpu(), _features(ids)):
                    return f"rank {group.rank}: rows of batch {done} are not the nodes'"
                if not torch.equal(ids[batch.edge_index.cpu()], coo[:, batch.e_id.cpu()]):
                    return f"rank {group.rank}: edges of batch {done} are not the graph's"
                done += 1
                if done == count:
                    break
        return ""

    if wrong := draw(count // 10):
        return wrong
    with growth_of_process() as growth:
        wrong = draw(count - count // 10)
    group.barrier()
    return f"rank {group.rank}: loaders grew by {growth}" if _has_grown(growth) else wrong
