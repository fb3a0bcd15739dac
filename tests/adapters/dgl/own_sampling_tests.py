"""DGL's own tests of its samplers, and of GraphBolt's samplers, items and features, run on stores.

    python -m tests.adapters.dgl.own_sampling_tests PATH_OF_A_CHECKOUT_OF_DGL [options of pytest]

The checkout must be of the version that is installed; packages of DGL come without tests. Graphs
that a test makes are shared; in tests of GraphBolt, a `SamplingGraph` takes their place.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import peergraph_dgl
from tests.adapters.pyg.own_tests import run_with_reasons

import dgl  # isort: skip
from dgl import graphbolt as gb  # isort: skip

from peergraph_dgl.graphbolt import SamplingGraph  # isort: skip

# Without test_integration.py, which needs the library of dgl.sparse, and the tests of classes that
# need GraphBolt's library: its own graph, caches and data sets on disk.
FOLDER = "tests/python/pytorch/graphbolt"
FILES = (
    *("test_base.py", "test_dataloader.py", "test_feature_fetcher.py", "test_graphbolt_utils.py"),
    *("test_item_sampler.py", "test_itemset.py", "test_minibatch.py"),
    *("test_subgraph_sampler.py", "test_utils.py", "impl/test_basic_feature_store.py"),
    *("impl/test_in_subgraph_sampler.py", "impl/test_negative_sampler.py"),
    *("impl/test_neighbor_sampler.py", "impl/test_sampled_subgraph_impl.py"),
    *("internal/test_sample_utils.py", "internal/test_utils.py"),
)

SAMPLING = "tests/python/common/sampling/test_sampling.py"
FUNCTIONS = (
    *("sample_neighbors", "sample_labors", "sample_neighbors_fused", "select_topk"),
    *("sample_etype_neighbors", "sample_neighbors_biased", "random_walk", "node2vec_random_walk"),
    *("global_uniform_negative_sampling", "PinSAGESampler", "RandomWalkNeighborSampler"),
)

_FLOAT_TIMES = "times of edges are floats, which are refused by name: int32 or int64"
_TIMED = "[SamplerType.Temporal]"
_LABOR = "LABOR with replacement, which is refused by name"
# Why a test fails, by its name or by its name and the beginning of its parameters.
REASONS = {
    "test_SubgraphSampler_Random_Hetero_Graph[True-SamplerType.Layer": _LABOR,
    "test_SubgraphSampler_Random_Hetero_Graph_seed_ndoes[True-SamplerType.Layer": _LABOR,
    **{
        f"test_SubgraphSampler_without_dedpulication_{kind}{_TIMED}": _FLOAT_TIMES
        for types in ("Homo", "Hetero")
        for kind in (f"{types}_seed_nodes", f"{types}_Node", f"{types}_Link")
    },
}


class OwnGraph(SamplingGraph):
    """A shared graph that has the tensors it was made of, which the tests read, and that is shared
    again when they set attributes.
    """

    def __init__(
        self,
        csc_indptr: Tensor,
        indices: Tensor,
        node_type_offset: Tensor | None = None,
        type_per_edge: Tensor | None = None,
        node_type_to_id: Mapping[str, int] | None = None,
        edge_type_to_id: Mapping[str, int] | None = None,
        node_attributes: Mapping[str, Tensor] | None = None,
        edge_attributes: Mapping[str, Tensor] | None = None,
        **_: Any,
    ) -> None:
        self.__dict__.update(csc_indptr=csc_indptr, indices=indices, type_per_edge=type_per_edge)
        self._types = node_type_offset, node_type_to_id, edge_type_to_id
        self._attributes = {"node": node_attributes or {}, "edge": edge_attributes or {}}
        self._share()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("node_attributes", "edge_attributes"):
            self._attributes[name.split("_")[0]] = value
            self._share()
        else:
            super().__setattr__(name, value)

    def _share(self) -> None:
        count = len(self.csc_indptr) - 1
        destinations = torch.arange(count).repeat_interleave(self.csc_indptr.diff())
        sources = self.indices.long()
        offsets, node_types, edge_types = self._types
        if offsets is None or node_types is None or edge_types is None:
            g = dgl.graph((sources, destinations), num_nodes=count)
            g.ndata.update(self._attributes["node"])
            g.edata.update(self._attributes["edge"])
        else:
            nodes = {t: slice(int(offsets[i]), int(offsets[i + 1])) for t, i in node_types.items()}
            chosen = {
                gb.etype_str_to_tuple(name): (self.type_per_edge == i).nonzero().view(-1)
                for name, i in edge_types.items()
            }
            edges = {
                t: (sources[ids] - nodes[t[0]].start, destinations[ids] - nodes[t[2]].start)
                for t, ids in chosen.items()
            }
            g = dgl.heterograph(edges, {t: part.stop - part.start for t, part in nodes.items()})
            for name, values in self._attributes["node"].items():
                for t, part in nodes.items():
                    g.nodes[t].data[name] = values[part]
            for name, values in self._attributes["edge"].items():
                for t, ids in chosen.items():
                    g.edges[t].data[name] = values[ids]
        SamplingGraph.__init__(self, peergraph_dgl.store_of(peergraph_dgl.share(g)))


def from_dgl(g: Any, *_: Any, **__: Any) -> OwnGraph:
    """Shares a graph of DGL, as ``gb.from_dglgraph`` converts it."""
    joined, counts, _ = dgl.to_homogeneous(g, return_count=True)
    indptr, indices, edges = joined.adj_tensors("csc")
    if g.is_homogeneous:
        return OwnGraph(indptr, indices)
    return OwnGraph(
        indptr,
        indices,
        torch.tensor([0, *accumulate(counts)]),
        joined.edata[dgl.ETYPE][edges],
        {t: g.get_ntype_id(t) for t in g.ntypes},
        {gb.etype_tuple_to_str(t): g.get_etype_id(t) for t in g.canonical_etypes},
    )


def share_arguments() -> None:
    """Makes DGL's functions that sample share the graph that they get."""
    shared: dict[int, tuple[Any, Any]] = {}

    def of(g: Any) -> Any:
        # A test may sample from a graph often; it is kept so that its id stays its own.
        if id(g) not in shared:
            shared[id(g)] = g, peergraph_dgl.share(g)
        return shared[id(g)][1]

    def with_shared(function: Any) -> Any:
        return lambda g, *args, **kwargs: function(of(g), *args, **kwargs)

    for name in FUNCTIONS:
        setattr(dgl.sampling, name, with_shared(getattr(dgl.sampling, name)))
    gb.fused_csc_sampling_graph, gb.from_dglgraph = OwnGraph, from_dgl


def main(checkout: str, *options: str) -> int:
    """Runs the tests; 0 if none fails but those of `REASONS`."""
    root = Path(checkout).resolve()
    paths = [root / SAMPLING, *(root / FOLDER / file for file in FILES)]
    files = [path for path in paths if path.exists()]
    if not files:
        raise SystemExit(f"{checkout} has none of DGL's tests of samplers")
    os.environ["DGLBACKEND"] = "pytorch"
    if not hasattr(np, "ComplexWarning"):  # NumPy 1 has it; a test silences it
        vars(np)["ComplexWarning"] = np.exceptions.ComplexWarning
    sys.path[:0] = [str(root / "tests"), str(root / FOLDER)]  # tests import modules of both
    share_arguments()
    # Processes that import torch and DGL anew would take most of the time.
    torch.multiprocessing.spawn = functools.partial(
        torch.multiprocessing.start_processes, start_method="fork"
    )
    return run_with_reasons(root, files, options, _reason)


def _reason(test: str) -> str | None:
    name = test.split("::")[-1]
    starts = (reason for start, reason in REASONS.items() if name.startswith(start))
    return next(starts, None)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
