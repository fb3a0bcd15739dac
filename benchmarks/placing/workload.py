"""What placement.py measures with: a graph, and what mini-batches of training nodes read of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from harness.ranks import Session
from inputs.arrays import batch_nodes, fill_features
from inputs.graphs import GraphSpec, make_csc, make_indptr
from torch import Tensor

from peergraph.memory import Tiers
from peergraph.memory.table.partitions import Partitions
from peergraph.sampling import NeighborSampler, Sample, presample
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Hotness, RowSource, Store
from peergraph.store.csc.layout import structure_bytes
from peergraph.store.hotness.id_map import hottest_first, id_dtype
from peergraph.store.placement.plan import Item
from peergraph.store.placement.prediction import Prediction
from peergraph.store.placement.ratios import predict_items
from peergraph.store.placement.reads import BatchReads

_BATCHES = 8
# Other draws than the counted ones: what is measured is an epoch that was not seen.
_FIRST_DRAW = 1 << 40
STRUCTURE, FEATURES = "structure", "node table"
NAMES = {STRUCTURE: "-".join(EDGE), FEATURES: f"{NODE}.x"}


@dataclass
class Workload:
    """A graph on the ranks' devices, and mini-batches of its training nodes.

    Args:
        csc: this rank's share of the structure; stays there for all stores to be built from.
        hotness: counted over an epoch of all ranks.
        seeds: of this rank's measured mini-batches.
        inputs: the nodes that they sample, which every plan samples alike.
    """

    session: Session
    spec: GraphSpec
    fanouts: Sequence[int]
    batch: int
    dim: int
    csc: tuple[Tensor, Tensor]
    hotness: Hotness
    seeds: list[Tensor]
    inputs: list[Tensor]

    @property
    def row_bytes(self) -> int:
        return 4 * self.dim

    @property
    def structure_bytes(self) -> int:
        return (
            16 * self.spec.num_nodes + self.spec.num_edges * id_dtype(self.spec.num_nodes).itemsize
        )

    @property
    def need(self) -> int:
        """Bytes that a GPU needs to hold everything."""
        return self.structure_bytes + self.spec.num_nodes * self.row_bytes

    @property
    def id_map_bytes(self) -> int:
        """Bytes of the renumbering, on every GPU where rows are split over tiers."""
        return 2 * self.spec.num_nodes * id_dtype(self.spec.num_nodes).itemsize

    @property
    def mean_inputs(self) -> float:
        """Input nodes of a mini-batch, over all ranks. Collective."""
        counts = [ids.numel() for ids in self.inputs]
        everywhere = [n for rank in self.session.group.all_gather(counts) for n in rank]
        return sum(everywhere) / len(everywhere)

    def source(self) -> GraphSource:
        """This rank's share of structure and features."""
        return _source(self.session, self.spec, self.csc, self.dim)

    def sample(self, sampler: NeighborSampler, step: int) -> Sample:
        """Samples a measured mini-batch."""
        at = step % len(self.seeds)
        return sampler.sample(self.seeds[at], seed=_FIRST_DRAW + at)

    @cached_property
    def _items_and_reads(self) -> tuple[list[Item], BatchReads]:
        """On the CPU, from the counts; takes memory and time on large graphs."""
        order = hottest_first(self.hotness.features[NODE], self.session.device)
        cumulative = structure_bytes(self._degrees[order], id_dtype(self.spec.num_nodes))
        items = [
            Item(STRUCTURE, NAMES[STRUCTURE], order.numel(), lambda k: int(cumulative[k]), EDGE),
            Item(FEATURES, NAMES[FEATURES], order.numel(), lambda k: k * self.row_bytes, NODE),
        ]
        return items, BatchReads.by_counts(self.hotness, {NODE: order})

    @property
    def items(self) -> list[Item]:
        """Structure and features, to plan for."""
        return self._items_and_reads[0]

    @property
    def reads(self) -> BatchReads:
        """How mini-batches read them."""
        return self._items_and_reads[1]

    @cached_property
    def _degrees(self) -> Tensor:
        """All in-degrees, as every rank can make them."""
        return make_indptr(self.spec, self.session.device).diff().cpu()

    def predict(self, tiers: Mapping[str, Tiers], partitions: Partitions) -> tuple[Prediction, ...]:
        """The reads of structure and features on these tiers, by kind."""
        chosen = [tiers[item.kind] for item in self.items]
        return predict_items(self.items, chosen, self.reads, partitions)


def make_workload(
    session: Session, spec: GraphSpec, fanouts: Sequence[int], batch: int, dim: int
) -> Workload:
    """Makes the graph, counts the reads of an epoch, samples the mini-batches. Collective."""
    rank, world = session.rank, session.world
    with session.stage(f"{spec.name}: graph made"):
        csc = make_csc(spec, session.device, spec.node_range(rank, world))
    nodes = batch_nodes(spec, 0, max(1, spec.train_nodes // world), rank, world, session.device)
    with session.stage(f"{spec.name}: replicated structure built"):
        source = _source(session, spec, csc, 0)
        store = Store.build(source, plan="replicated", group=session.group)
    try:
        with session.stage(f"{spec.name}: an epoch counted"):
            hotness = presample(store, list(fanouts), nodes, batch)
        shuffled = nodes[torch.randperm(nodes.numel(), generator=_generator(rank)).to(nodes.device)]
        batch = min(batch, nodes.numel())
        starts = [(batch * step) % (nodes.numel() - batch + 1) for step in range(_BATCHES)]
        seeds = [shuffled[start : start + batch] for start in starts]
        work = Workload(session, spec, fanouts, batch, dim, csc, hotness, seeds, [])
        sampler = plain_sampler(store, fanouts)
        work.inputs.extend(work.sample(sampler, step).nodes[NODE] for step in range(_BATCHES))
    finally:
        store.close()
    return work


def plain_sampler(store: Store, fanouts: Sequence[int]) -> NeighborSampler:
    """The sampler of the mini-batches, as it was used for counting."""
    return NeighborSampler(store, list(fanouts), edge_ids=False)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _source(session: Session, spec: GraphSpec, csc: tuple[Tensor, Tensor], dim: int) -> GraphSource:
    begin, end = spec.node_range(session.rank, session.world)

    def rows(first: int, last: int) -> Tensor:
        return fill_features(first, torch.empty(last - first, dim, device=session.device))

    tables = {"x": RowSource((end - begin, dim), torch.float32, rows)} if dim else {}
    return GraphSource.homogeneous(
        spec.num_nodes, EdgeSource(csc=csc), tables, node_range=(begin, end)
    )
