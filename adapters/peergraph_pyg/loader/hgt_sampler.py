"""`HGTSampler`: PyG's layer-wise sampler of graphs with types, over a store."""

from __future__ import annotations

from typing import Any, NoReturn

import torch_geometric.sampler
from torch_geometric.data import Data
from torch_geometric.sampler import HeteroSamplerOutput

from peergraph.sampling import HgtSampler, next_seed

from ..data.store_of import store_of


class HGTSampler(torch_geometric.sampler.HGTSampler):  # type: ignore[misc]
    """``torch_geometric.sampler.HGTSampler`` that samples from a store, on its device.

    ``HGTLoader`` constructs it for shared data. :class:`peergraph.sampling.HgtSampler` draws, with
    a seed for each batch from torch's default generator. A batch has all edges among its nodes;
    PyG's own sampler leaves some edges of nodes with more than 50 in-neighbours out.

    Args:
        data: ``HeteroData`` returned by :func:`peergraph_pyg.share`, or the pair returned by
            :func:`peergraph_pyg.stores`.
        num_samples: nodes per hop: a list of ints, or a dict of such lists by node type.
        is_sorted, share_memory: no effect: the store's structure is sorted and shared.

    Raises:
        NotImplementedError: the data has no types.
        ValueError, TypeError: as :class:`peergraph.sampling.HgtSampler`.
    """

    def __init__(
        self, data: Any, num_samples: Any, is_sorted: bool = False, share_memory: bool = False
    ) -> None:
        self.store = store_of(data)
        if isinstance(data, Data) or self.store.is_homogeneous:
            raise NotImplementedError(
                "HGTSampler: the graph has no types; NeighborLoader samples it, or "
                "ShaDowKHopSampler and the GraphSAINT samplers"
            )
        if isinstance(data, (tuple, list)):
            self.node_types, edge_types = self.store.node_types, data[1].edge_types
        else:
            self.node_types, edge_types = data.metadata()
        self.edge_types = [t for t in self.store.edge_types if t in edge_types]
        if isinstance(num_samples, (list, tuple)):
            num_samples = dict.fromkeys(self.node_types, num_samples)
        self.num_samples = num_samples
        self.perm = None  # edge ids are the user's own
        self.core = HgtSampler(self.store, num_samples, self.edge_types)
        self.num_hops = self.core.num_hops

    def sample_from_nodes(self, inputs: Any) -> HeteroSamplerOutput:
        """Samples around a batch of seeds of one type."""
        sample = self.core.sample({inputs.input_type: inputs.node}, next_seed())
        return HeteroSamplerOutput(
            node={t: sample.nodes[t] for t in self.node_types},
            row=sample.row,
            col=sample.col,
            edge=sample.edge_ids,
            batch=None,
            metadata=(inputs.input_id, inputs.time),
        )

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> NoReturn:
        """Raises ``NotImplementedError``: the algorithm starts from nodes, as in PyG."""
        raise NotImplementedError("HGTSampler samples around nodes; use LinkNeighborLoader")
