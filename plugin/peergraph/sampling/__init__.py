"""Sampling: k-hop neighbourhoods of seeds, with append-unique (WholeGraph III-C1, III-C2), random
walks, PinSAGE neighbours, negative edges.
"""

from peergraph.sampling.bounds import bounds_of
from peergraph.sampling.exclude import exclude_edges
from peergraph.sampling.fixed import FixedNeighborSampler
from peergraph.sampling.fixed_sample import FixedSample, FixedShape
from peergraph.sampling.negative import Negatives, NegativeSampler
from peergraph.sampling.neighbor import NeighborSampler
from peergraph.sampling.pinsage import PinSageLayer, PinSageSample, PinSageSampler
from peergraph.sampling.presample import presample
from peergraph.sampling.sample import Block, Sample
from peergraph.sampling.walk import RandomWalker, Walks

__all__ = [
    "Block",
    "FixedNeighborSampler",
    "FixedSample",
    "FixedShape",
    "NegativeSampler",
    "Negatives",
    "NeighborSampler",
    "PinSageLayer",
    "PinSageSample",
    "PinSageSampler",
    "RandomWalker",
    "Sample",
    "Walks",
    "bounds_of",
    "exclude_edges",
    "presample",
]
