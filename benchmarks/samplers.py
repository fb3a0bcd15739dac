"""Each sampler of PyG and DGL on a shared store, beside DGL's and PyG's own on the CPU.

    OMP_NUM_THREADS=1 python benchmarks/samplers.py --graph products/10 --rounds 20
    python benchmarks/samplers.py --graph products --device cuda

Systems take turns, batch by batch, so that others disturb all of them the same. A batch is the
indices of a subgraph, without features. DGL's own samplers run on a plain DGL graph, PyG's on plain
data, where they need neither pyg-lib nor torch-sparse. `ratio` is the peer's median time over
Peergraph's. Peergraph's samplers may be on a GPU, the peers are on the CPU.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import peergraph_dgl  # noqa: F401  # first: DGL can be imported then
import peergraph_pyg

# isort: split

import dgl
import torch
import torch_geometric.loader as pyg
from dgl import dataloading
from harness.common import words_of
from harness.turns import in_turns, parser, report
from inputs.graphs import get_spec, make_csc
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import MetaPath2Vec, Node2Vec
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.utils import k_hop_subgraph

from peergraph.sampling import NeighborSampler, PinSageSampler

Call = Callable[[int], object]
Systems = dict[str, Call]

_COLUMNS = ["sampler", "batch", "device", "ms", "ms_median", "cpu_ms", "peer", "peer_ms"]
_COLUMNS += ["peer_median", "peer_cpu", "ratio", "cpu_ratio"]
_PARTS, _PARTS_OF_BATCH = 100, 2
_SEEDS = 512


class Inputs:
    """A graph as shared data on a device, as plain data, and as DGL's."""

    def __init__(self, csc: tuple[torch.Tensor, torch.Tensor], device: str) -> None:
        indptr, indices = csc
        self.count = len(indptr) - 1
        target = torch.arange(self.count).repeat_interleave(indptr.diff())
        self.edge_index = torch.stack([indices.long(), target])
        self.plain = Data(edge_index=self.edge_index, num_nodes=self.count)
        self.shared = peergraph_pyg.share(self.plain, device=device)
        self.store = peergraph_pyg.store_of(self.shared)
        self.dgl = dgl.graph(tuple(self.edge_index), num_nodes=self.count)
        self.dgl.create_formats_()
        self.seeds = torch.randint(self.count, (64, _SEEDS))

    def batch(self, step: int) -> torch.Tensor:
        return self.seeds[step % len(self.seeds)]


def hops(inputs: Inputs) -> tuple[str, Systems]:
    """PyG's deprecated NeighborSampler."""
    loader = pyg.NeighborSampler(inputs.shared.edge_index, [15, 10])
    of_dgl = dataloading.NeighborSampler([10, 15])
    return f"{_SEEDS} seeds, 15-10", {
        "peergraph": lambda i: loader.sample(inputs.batch(i)),
        "dgl": lambda i: of_dgl.sample(inputs.dgl, inputs.batch(i)),
    }


def shadow(inputs: Inputs) -> tuple[str, Systems]:
    """PyG's: a subgraph for each seed."""
    loader = pyg.ShaDowKHopSampler(inputs.shared, 2, 5)
    return f"{_SEEDS} seeds, 5-5", {"peergraph": lambda i: loader.collate_fn(inputs.batch(i))}


def joint_shadow(inputs: Inputs) -> tuple[str, Systems]:
    """DGL's ShaDow: one subgraph of all seeds."""
    core = NeighborSampler(inputs.store, [5, 5], frontier="all", subgraph="induced")
    of_dgl = dataloading.ShaDowKHopSampler([5, 5])
    return f"{_SEEDS} seeds, 5-5", {
        "peergraph": lambda i: core.sample(inputs.batch(i), i),
        "dgl": lambda i: of_dgl.sample(inputs.dgl, inputs.batch(i)),
    }


def saint(kind: str, mode: str, budget: Any, **options: Any) -> Callable[[Inputs], Any]:
    """A sampler of GraphSAINT; DGL's draws edges by other probabilities than PyG's."""

    def make(inputs: Inputs) -> tuple[str, Systems]:
        size = budget[0] if mode == "walk" else budget
        loader = getattr(pyg, kind)(inputs.shared, batch_size=size, **options)
        of_dgl = dataloading.SAINTSampler(mode, budget)
        of_dgl.sample(inputs.dgl, None)  # keeps its probabilities
        return f"{budget}", {
            "peergraph": lambda i: loader._collate([loader[i]]),
            "dgl": lambda i: of_dgl.sample(inputs.dgl, None),
        }

    return make


def random_nodes(inputs: Inputs) -> tuple[str, Systems]:
    """RandomNodeLoader: the subgraph of a hundredth of the nodes."""
    loaders = [pyg.RandomNodeLoader(data, _PARTS) for data in (inputs.shared, inputs.plain)]
    nodes = torch.randperm(inputs.count).split(inputs.count // _PARTS)
    return f"{len(nodes[0])} nodes", {
        "peergraph": lambda i: loaders[0].collate_fn(nodes[i % _PARTS]),
        "dgl": lambda i: inputs.dgl.subgraph(nodes[i % _PARTS]),
        "pyg": lambda i: loaders[1].collate_fn(nodes[i % _PARTS]),
    }


class _PlainClusters(pyg.ClusterData):
    """PyG's own class, without METIS."""

    def _metis(self, edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
        return torch.arange(num_nodes) % self.num_parts


def clusters(inputs: Inputs) -> tuple[str, Systems]:
    """ClusterLoader; parts of the same random nodes, as the graph has no communities."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"num_parts": _PARTS, "save_dir": folder, "log": False}
        plain = _PlainClusters(inputs.plain, **options)
        shared = pyg.ClusterData(inputs.shared, **options)
    loaders = [pyg.ClusterLoader(data) for data in (shared, plain)]
    batches = [torch.randperm(_PARTS)[:_PARTS_OF_BATCH] for _ in range(64)]
    order, bounds = plain.partition.node_perm, plain.partition.partptr

    def nodes(i: int) -> torch.Tensor:
        return torch.cat([order[bounds[part] : bounds[part + 1]] for part in batches[i % 64]])

    return f"{_PARTS_OF_BATCH} of {_PARTS} parts", {
        "peergraph": lambda i: loaders[0].collate_fn(batches[i % 64]),
        "dgl": lambda i: inputs.dgl.subgraph(nodes(i)),
        "pyg": lambda i: loaders[1].collate_fn(batches[i % 64]),
    }


def k_hop(inputs: Inputs) -> tuple[str, Systems]:
    """k_hop_subgraph of one seed."""
    return "1 seed, 1 hop", {
        name: lambda i, edges=edges: k_hop_subgraph(
            int(inputs.batch(i)[0]), 1, edges, num_nodes=inputs.count
        )
        for name, edges in (("peergraph", inputs.shared.edge_index), ("pyg", inputs.edge_index))
    }


def node2vec(inputs: Inputs) -> tuple[str, Systems]:
    """Positive samples of Node2Vec."""
    model = Node2Vec(inputs.shared.edge_index, 1, walk_length=20, context_size=20, p=0.5, q=2.0)
    walk = dgl.sampling.node2vec_random_walk
    return f"{_SEEDS} walks of 19 steps", {
        "peergraph": lambda i: model.pos_sample(inputs.batch(i)),
        "dgl": lambda i: walk(inputs.dgl, inputs.batch(i), 0.5, 2.0, 19),
    }


def pinsage(inputs: Inputs) -> tuple[str, Systems]:
    """PinSAGE's neighbours."""
    core = PinSageSampler(
        inputs.store.reversed(), num_walks=10, walk_length=3, num_neighbors=5, restart_prob=0.5
    )
    of_dgl = dgl.sampling.RandomWalkNeighborSampler(inputs.dgl, 3, 0.5, 10, 5)
    return f"{_SEEDS} seeds, 10 walks", {
        "peergraph": lambda i: core.sample(inputs.batch(i), i),
        "dgl": lambda i: of_dgl(inputs.batch(i)),
    }


def typed(inputs: Inputs) -> HeteroData:
    """The graph as three relations between two types of nodes, shared."""
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = inputs.count
    for i, t in enumerate([("a", "cites", "a"), ("a", "to", "b"), ("b", "from", "a")]):
        data[t].edge_index = inputs.edge_index[:, i::3]
    return peergraph_pyg.share(data, device=inputs.store.device)


def hgt(inputs: Inputs) -> tuple[str, Systems]:
    """HGTLoader."""
    loader = pyg.HGTLoader(typed(inputs), [_SEEDS] * 2, "a")

    def sample(step: int) -> object:
        nodes = NodeSamplerInput(None, inputs.batch(step), None, "a")
        return loader.node_sampler.sample_from_nodes(nodes)

    return f"{_SEEDS} seeds, {_SEEDS} of a type x 2", {"peergraph": sample}


def metapath2vec(inputs: Inputs) -> tuple[str, Systems]:
    """Positive samples of MetaPath2Vec, beside PyG's on copies of the edges."""
    shared = typed(inputs)
    plain = {t: shared[t].edge_index.clone().cpu() for t in shared.edge_types}
    path = [("a", "to", "b"), ("b", "from", "a")]
    counts = dict.fromkeys("ab", inputs.count)
    models = {
        name: MetaPath2Vec(edges, 1, path, 20, 21, num_nodes_dict=dict(counts))
        for name, edges in (("peergraph", shared.edge_index_dict), ("pyg", plain))
    }
    return f"{_SEEDS} walks of 20 steps", {
        name: lambda i, model=model: model._pos_sample(inputs.batch(i))
        for name, model in models.items()
    }


SAMPLERS: dict[str, Callable[[Inputs], tuple[str, Systems]]] = {
    "NeighborSampler": hops,
    "ShaDow": shadow,
    "ShaDow, joint": joint_shadow,
    "SAINT nodes": saint("GraphSAINTNodeSampler", "node", 6000),
    "SAINT edges": saint("GraphSAINTEdgeSampler", "edge", 4000),
    "SAINT walks": saint("GraphSAINTRandomWalkSampler", "walk", (3000, 2), walk_length=2),
    "RandomNode": random_nodes,
    "Cluster": clusters,
    "k_hop_subgraph": k_hop,
    "HGT": hgt,
    "Node2Vec": node2vec,
    "MetaPath2Vec": metapath2vec,
    "PinSAGE": pinsage,
}


def measure(name: str, inputs: Inputs, rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each peer, or one without a peer."""
    batch, systems = SAMPLERS[name](inputs)
    sample, device = systems["peergraph"], inputs.store.device

    def waited(step: int) -> None:
        sample(step)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    torch.manual_seed(0)
    dgl.seed(0)
    times = in_turns({**systems, "peergraph": waited}, rounds)
    own = times.pop("peergraph")
    row = {"sampler": name, "batch": batch, "device": device.type, "ms": own.least}
    row |= {"ms_median": own.median, "cpu_ms": own.least_cpu, "threads": torch.get_num_threads()}
    row["load"] = os.getloadavg()[0]
    for name, peer in times.items():
        row_of_peer = {
            "peer": name,
            "peer_ms": peer.least,
            "peer_median": peer.median,
            "peer_cpu": peer.least_cpu,
            "ratio": peer.median / own.median,
            "cpu_ratio": peer.least_cpu / own.least_cpu,
        }
        yield row | row_of_peer
    if not times:
        yield row


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--graph", type=get_spec, default="products/10", help="NAME/DIVISOR")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the store")
    options.add_argument("--samplers", type=words_of(SAMPLERS), default=list(SAMPLERS))
    args = options.parse_args()
    inputs = Inputs(make_csc(args.graph, "cpu"), args.device)
    records = (
        {"graph": args.graph.name, **row}
        for name in args.samplers
        for row in measure(name, inputs, args.rounds)
    )
    report("samplers", records, _COLUMNS, args.out)


if __name__ == "__main__":
    main()
