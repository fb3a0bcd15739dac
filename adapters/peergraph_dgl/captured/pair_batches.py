"""The batches of DGL's edge prediction samplers: graphs of pairs, and the blocks of their ends."""

from __future__ import annotations

import copy
from typing import Any

import dgl
import torch
from dgl import DGLGraph
from dgl.frame import Frame
from torch import Tensor

from peergraph.integration import BatchRequest
from peergraph.sampling import Sample, StaticShapeSample, next_seed
from peergraph.store import EdgeType, NodeType

from ..backend.edge_list import EdgeList
from ..graph.frames import select_rows
from ..loader.blocks import make_index, to_blocks
from ..loader.sampling import edge_ids_by_type, ids_by_type
from .block_batches import BlockBatches, change_columns

Ends = dict[EdgeType, tuple[Tensor, Tensor]]


class PairBatches(BlockBatches):
    """The batches of a loader of edges: input nodes, the graph of the edges, that of negatives if
    there is a negative sampler, and blocks.
    """

    @property
    def _block_sampler(self) -> Any:
        return self._loader.graph_sampler.sampler

    @property
    def settings(self) -> tuple[Any, ...]:
        """What the sizes of full batches depend on."""
        sampler = self._loader.graph_sampler
        negatives, exclude = sampler.negative_sampler, sampler.exclude
        # Tensors of excluded edges are not compared: samples without them may exceed the sizes, as
        # any sample may.
        kind = exclude if isinstance(exclude, str) else type(exclude)
        return self.core, negatives, getattr(negatives, "k", None), kind

    def begin(self, index: Any) -> BatchRequest:
        """Begins the batch of these edges, a tensor, or a dict of one by type.

        DGL's own code draws negatives and numbers the distinct ends, on the host.
        """
        sampler, ends = copy.copy(self._loader.graph_sampler), _EndSampler()
        sampler.sampler = ends
        _, pairs, *negatives, _ = sampler.sample(self._graph, index)
        extras = (
            _ends_of(pairs),
            {t: pairs.edges[t].data[dgl.EID] for t in pairs.canonical_etypes},
            [_ends_of(graph) for graph in negatives],
        )
        excluded = {}
        if ends.exclude_eids is not None:
            excluded = {
                edge_type: ids.to("cpu", torch.int64)
                for edge_type, ids in edge_ids_by_type(self._graph, ends.exclude_eids).items()
            }
        nodes = ids_by_type(self._graph, ends.nodes)
        is_full = self._is_full(index)
        return BatchRequest(nodes, ends.seed, extras, is_full, None, excluded=excluded)

    def _batch_of(self, sample: Sample, extras: Any) -> Any:
        graph, (ends, edge_ids, negatives) = self._graph, extras
        blocks = to_blocks(sample, graph)
        nodes = {t: blocks[-1].dstnodes[t].data[dgl.NID] for t in graph.ntypes}
        frames = zip(graph._node_frames, nodes.values(), strict=True)
        pairs = _graph_of(
            graph,
            nodes,
            ends,
            [select_rows(frame, ids, dgl.NID) for frame, ids in frames],
            [
                select_rows(frame, edge_ids[edge_type], dgl.EID)
                for frame, edge_type in zip(graph._edge_frames, edge_ids, strict=True)
            ],
        )
        others = [
            _graph_of(
                graph,
                nodes,
                ends_of_one,
                [Frame({dgl.NID: ids}, num_rows=len(ids)) for ids in nodes.values()],
                [Frame(num_rows=len(source)) for source, _ in ends_of_one.values()],
            )
            for ends_of_one in negatives
        ]
        return blocks[0].srcdata[dgl.NID], pairs, *others, blocks

    def change_padding(
        self, batch: Any, sample: StaticShapeSample, padding: dict[NodeType, Tensor]
    ) -> None:
        """Changes the floating-point columns of all blocks and of the nodes of pairs."""
        super().change_padding(batch, sample, padding)
        for graph in batch[1:-1]:
            for node_type in graph.ntypes:
                change_columns(graph.nodes[node_type].data, padding[node_type])


class _EndSampler:
    """A sampler that samples no blocks: it draws a seed, and keeps its arguments."""

    nodes: Any
    exclude_eids: Any
    seed: int

    def sample(self, _: Any, nodes: Any, exclude_eids: Any) -> tuple[None, None, None]:
        self.nodes, self.exclude_eids, self.seed = nodes, exclude_eids, next_seed()
        return None, None, None


def _ends_of(graph: DGLGraph) -> Ends:
    return {t: graph.edges(etype=t, order="eid") for t in graph.canonical_etypes}


def _graph_of(
    graph: Any,
    nodes: dict[NodeType, Tensor],
    ends: Ends,
    node_frames: list[Frame],
    edge_frames: list[Frame],
) -> DGLGraph:
    """Returns a graph of the types of `graph` with these nodes and edges."""
    counts = {node_type: len(ids) for node_type, ids in nodes.items()}
    edge_lists = [EdgeList(counts[t[0]], counts[t[2]], *pair) for t, pair in ends.items()]
    index = make_index(graph, edge_lists, list(counts.values()))
    etypes = [edge_type[1] for edge_type in graph.canonical_etypes]
    return DGLGraph(index, list(graph.ntypes), etypes, node_frames, edge_frames)
