"""Sampling: k-hop neighbourhoods of seeds, with append-unique (WholeGraph III-C1, III-C2), random
walks, PinSAGE neighbours, negative edges.
"""

from .exclude import exclude_edges
from .negative import Negatives, NegativeSampler
from .neighbor import NeighborSampler
from .pinsage import PinSageLayer, PinSageSample, PinSageSampler
from .presample import presample
from .sample import Block, Sample
from .walk import RandomWalker, Walks

__all__ = [
    "Block",
    "NegativeSampler",
    "Negatives",
    "NeighborSampler",
    "PinSageLayer",
    "PinSageSample",
    "PinSageSampler",
    "RandomWalker",
    "Sample",
    "Walks",
    "exclude_edges",
    "presample",
]
