"""Sampling: k-hop neighbourhoods of seeds, with append-unique (WholeGraph III-C1, III-C2)."""

from .neighbor import NeighborSampler
from .presample import presample
from .sample import Block, Sample

__all__ = ["Block", "NeighborSampler", "Sample", "presample"]
