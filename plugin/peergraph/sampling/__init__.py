"""Sampling: k-hop neighbourhoods of seeds, with append-unique (WholeGraph III-C1, III-C2), random
walks, PinSAGE neighbours, negative edges.
"""

from .bounds import bounds_of
from .exclude import exclude_edges
from .fixed import FixedNeighborSampler
from .fixed_sample import FixedSample, FixedShape
from .negative import Negatives, NegativeSampler
from .neighbor import NeighborSampler
from .pinsage import PinSageLayer, PinSageSample, PinSageSampler
from .presample import presample
from .sample import Block, Sample
from .walk import RandomWalker, Walks

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
