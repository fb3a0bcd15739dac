"""The systems under test, Peergraph and WholeGraph, behind one face: they sample and gather."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from harness.common import cases, words
from harness.ranks import Session
from inputs.arrays import batch_nodes
from inputs.feature_tables import FULL
from inputs.graph_source import make_source
from inputs.graphs import GraphSpec
from torch import Tensor

from peergraph.memory import TableRows
from peergraph.sampling import NeighborSampler, Sample
from peergraph.store import EDGE, NODE, Store

_SEED_SETS = 8
# The systems draw with different random numbers, so that their edge counts agree only nearly.
_EDGE_TOLERANCE = 0.02
_DEFAULT_CASES = "30-30-30:512,30-30-30:1024,15-10-5:1024,15-10-5:6000,10-25:6000"
_WHOLEGRAPH_IDS = {"int32": torch.int32, "int64": torch.int64}


@dataclass
class Layer:
    """The edges that one layer of a model aggregates: CSR over its destinations, and COO."""

    indptr: Tensor
    indices: Tensor  # sources
    destinations: Tensor

    @property
    def num_destinations(self) -> int:
        return self.indptr.numel() - 1


@dataclass(frozen=True)
class Semantics:
    """What a sample holds; samples of the same kind compare."""

    frontier: str
    edge_ids: bool
    index_dtype: torch.dtype


SEMANTICS = {
    # All nodes so far expand at each hop. As in WholeGraph's samples, int32 local ids, no edge ids.
    "dgl": Semantics("all", False, torch.int32),
    # Only newly found nodes expand.
    "pyg": Semantics("new", True, torch.int64),
}


class PeergraphSystem:
    """Peergraph's sampler and feature table, with one plan and one kind of sample.

    Narrow storage of the features is compared with float32.
    """

    def __init__(self, store: Store, plan: str, semantics: str, storage: str = FULL) -> None:
        self.system = "peergraph" if storage == FULL else f"peergraph {storage}"
        self.against = None if storage == FULL else plan
        self.plan = plan
        self.semantics = semantics
        self.id_dtype = torch.int64
        self.store = store
        self._sampler: NeighborSampler | None = None
        self._table = store.node_table("x") if "x" in store.node_table_names() else None

    def use_fanouts(self, fanouts: list[int]) -> None:
        kind = SEMANTICS[self.semantics]
        self._sampler = NeighborSampler(
            self.store,
            fanouts,
            frontier=kind.frontier,
            edge_ids=kind.edge_ids,
            index_dtype=kind.index_dtype,
        )

    def sample(self, seeds: Tensor, step: int) -> Sample:
        return self._sampler.sample(seeds, seed=step)

    def gather(self, sample: Sample) -> Tensor:
        return self._table.gather(sample.nodes[NODE])

    def rows(self, sample: Sample) -> TableRows:
        """What gather gives, left where it is."""
        return TableRows(self._table, sample.nodes[NODE])

    def nodes(self, sample: Sample) -> Tensor:
        return sample.nodes[NODE]

    def num_edges(self, sample: Sample) -> int:
        return sum(sum(edges) for edges in sample.num_sampled_edges.values())

    def layers(self, sample: Sample) -> list[Layer]:
        """Of a "dgl" sample, the layer that is computed first in front."""
        destinations = sample.col[EDGE].split(sample.num_sampled_edges[EDGE])
        blocks = [sample.block(hop) for hop in range(len(destinations))]
        layers = zip(blocks, destinations, strict=True)
        return [Layer(block.indptr, block.row, column) for block, column in layers][::-1]


class WholeGraphSystem:
    """WholeGraph's sampler and embedding, spread over the devices."""

    def __init__(self, peer: Any, graph: Any, table: Any, name: str, against: str) -> None:
        self.system = name
        self.plan = None
        self.against = against
        self.semantics = "dgl"
        self.id_dtype = graph.csr_col_ind.dtype
        self._peer, self._graph, self._table = peer, graph, table
        self._fanouts: list[int] = []

    def use_fanouts(self, fanouts: list[int]) -> None:
        self._fanouts = fanouts

    def sample(self, seeds: Tensor, step: int) -> Any:
        return self._peer.sample(self._graph, seeds, self._fanouts)

    def gather(self, sample: Any) -> Tensor:
        return self._peer.gather(self._table, sample.nodes[0])

    def nodes(self, sample: Any) -> Tensor:
        return sample.nodes[0]

    def num_edges(self, sample: Any) -> int:
        return sum(indices.numel() for indices in sample.indices)

    def layers(self, sample: Any) -> list[Layer]:
        layers = zip(sample.indptr, sample.indices, sample.coo, strict=True)
        return [Layer(indptr, indices, coo[1]) for indptr, indices, coo in layers]


System = PeergraphSystem | WholeGraphSystem


@dataclass
class Case:
    """One fanout and batch size on one system, ready to be timed."""

    fanouts: list[int]
    batch: int
    seeds: list[Tensor]  # of this rank, by step; to go round
    fields: dict[str, Any]  # for the record

    def seeds_of(self, step: int) -> Tensor:
        return self.seeds[step % len(self.seeds)]


def add_arguments(parser: argparse.ArgumentParser, case_list: str = _DEFAULT_CASES) -> None:
    parser.add_argument("--cases", type=cases, default=case_list, help="FANOUTS:BATCH,...")
    parser.set_defaults(semantics=list(SEMANTICS))
    parser.add_argument("--wholegraph-kinds", type=words, default="chunked", help="or continuous")
    parser.add_argument("--wholegraph-ids", type=words, default="int64", help="or int32")


def build_store(
    session: Session,
    plan: str,
    feature_dim: int = 0,
    labels: bool = False,
    storage: str = FULL,
) -> Store:
    """The benchmark's graph as a store, each rank making its share on its device. Collective."""
    spec = session.args.graph
    mine = spec.node_range(session.rank, session.world)
    with session.stage(f"{spec.name}: graph made"):
        source = make_source(spec, mine, session.device, feature_dim, labels)
    with session.stage(f"{spec.name}: {plan} store built"):
        narrow = None if storage == FULL else {"x": storage}
        store = Store.build(source, plan=plan, storage=narrow, group=session.group)
    if session.rank == 0:
        print(f"{spec.name}: {store.plan}", flush=True)
    return store


def systems(
    session: Session,
    feature_dim: int = 0,
    labels: bool = False,
    storages: Sequence[str] = (FULL,),
) -> Iterator[System]:
    """Each system in turn, Peergraph first; it is closed when the next one is asked for."""
    args = session.args
    for plan, storage in product(args.plans, storages):
        with session.section(f"{plan} store of {storage}", system="peergraph", plan=plan):
            store = build_store(session, plan, feature_dim, labels, storage)
            for semantics in args.semantics:
                yield PeergraphSystem(store, plan, semantics, storage)
            store.close()
    if session.wholegraph is None:
        return
    # WholeGraph spreads everything over the devices, as the sharded plan does.
    against = "sharded" if "sharded" in args.plans else args.plans[0]
    for kind in args.wholegraph_kinds:
        for ids in args.wholegraph_ids:
            with session.section(f"wholegraph {kind} {ids}", system="wholegraph"):
                yield from _wholegraph(session, kind, ids, feature_dim, against)


def _wholegraph(
    session: Session, kind: str, ids: str, feature_dim: int, against: str
) -> Iterator[WholeGraphSystem]:
    peer, spec = session.wholegraph, session.args.graph
    with session.stage(f"{spec.name}: WholeGraph's {kind} {ids} graph and features made"):
        graph = peer.graph(kind, spec, _WHOLEGRAPH_IDS[ids])
        table = peer.table(kind, "cuda", spec.num_nodes, feature_dim) if feature_dim else None
    yield WholeGraphSystem(peer, graph, table, f"wholegraph {kind} {ids}", against)
    if table is not None:
        peer.drop_table(table)
    peer.drop_graph(graph)


class CaseRunner:
    """Goes through the cases of each system; checks that the systems sample as many edges."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._edges: dict[tuple[Any, ...], float] = {}

    def run(self, system: System, layers: str | None, time_case: Callable[[Case], None]) -> None:
        """Calls time_case for each case, in a section of its own. Collective.

        `layers` says how a model reads the samples, None without a model.
        """
        session, spec = self._session, self._session.args.graph
        for fanouts, batch in session.args.cases:
            fields = {
                "system": system.system,
                "plan": system.plan,
                "against": system.against,
                "semantics": system.semantics,
                "graph": spec.name,
                "fanout": "-".join(map(str, fanouts)),
                "batch": batch,
                "layers": layers,
            }
            name = " ".join(str(value) for value in fields.values() if value is not None)
            with session.section(name, **fields):
                system.use_fanouts(fanouts)
                seeds = seed_sets(session, spec, batch, system.id_dtype)
                self._count(system, seeds, fields)
                time_case(Case(fanouts, batch, seeds, fields))

    def _count(self, system: System, seeds: list[Tensor], fields: dict[str, Any]) -> None:
        """Adds the mean edges and nodes of a mini-batch over all ranks and seed sets."""

        def count() -> list[tuple[int, int]]:
            samples = (system.sample(ids, step) for step, ids in enumerate(seeds))
            return [(system.num_edges(sample), system.nodes(sample).numel()) for sample in samples]

        counts = self._session.together(count)
        everywhere = [count for rank in self._session.group.all_gather(counts) for count in rank]
        edges, nodes = (sum(column) / len(everywhere) for column in zip(*everywhere, strict=True))
        fields.update(edges=edges, nodes=nodes)
        case = (fields["fanout"], fields["batch"], fields["semantics"])
        expected = self._edges.setdefault(case, edges)
        if abs(edges / expected - 1) > _EDGE_TOLERANCE:
            raise AssertionError(f"{edges:.0f} edges a mini-batch, others sample {expected:.0f}")


def seed_sets(session: Session, spec: GraphSpec, batch: int, dtype: torch.dtype) -> list[Tensor]:
    """This rank's seeds of some mini-batches; the same for every system."""
    return [
        batch_nodes(spec, step, batch, session.rank, session.world, session.device).to(dtype)
        for step in range(_SEED_SETS)
    ]
