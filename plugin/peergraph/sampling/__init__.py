"""Sampling: k-hop neighbourhoods of seeds, with append-unique (WholeGraph III-C1, III-C2),
layer-wise samples, subgraphs of GraphSAINT, random walks, PinSAGE neighbours, personalised
PageRank, negative edges.
"""

from peergraph.sampling.exclude import edges_between, exclude_edges
from peergraph.sampling.hgt_sampler import HgtSampler
from peergraph.sampling.lazy_dict import LazyDict
from peergraph.sampling.negative.batch_negatives import hard_negatives, in_batch_negatives
from peergraph.sampling.negative.negative_sampler import Negatives, NegativeSampler
from peergraph.sampling.negative.node_windows import NodeWindows
from peergraph.sampling.neighbor.batch_thread import BatchRequest, BatchTables, BatchThread
from peergraph.sampling.neighbor.neighbor_sampler import NeighborSampler
from peergraph.sampling.ppr.ppr_sampler import PprNeighbors, PprSample, PprSampler
from peergraph.sampling.presampling import presample
from peergraph.sampling.random_seeds import next_seed
from peergraph.sampling.saint.saint_norm import SaintNorm, measure_norm
from peergraph.sampling.saint.saint_sampler import SaintSampler
from peergraph.sampling.sample import Block, Sample, SampleArrays
from peergraph.sampling.static_shape.bounds import sample_bounds
from peergraph.sampling.static_shape.static_shape_sample import StaticShape, StaticShapeSample
from peergraph.sampling.static_shape.static_shape_sampler import StaticShapeSampler
from peergraph.sampling.walks.pinsage import PinSageLayer, PinSageSample, PinSageSampler
from peergraph.sampling.walks.random_walker import RandomWalker, Walks

__all__ = [
    "BatchRequest",
    "BatchTables",
    "BatchThread",
    "Block",
    "HgtSampler",
    "LazyDict",
    "NegativeSampler",
    "Negatives",
    "NeighborSampler",
    "NodeWindows",
    "PinSageLayer",
    "PinSageSample",
    "PinSageSampler",
    "PprNeighbors",
    "PprSample",
    "PprSampler",
    "RandomWalker",
    "SaintNorm",
    "SaintSampler",
    "Sample",
    "SampleArrays",
    "StaticShape",
    "StaticShapeSample",
    "StaticShapeSampler",
    "Walks",
    "edges_between",
    "exclude_edges",
    "hard_negatives",
    "in_batch_negatives",
    "measure_norm",
    "next_seed",
    "presample",
    "sample_bounds",
]
