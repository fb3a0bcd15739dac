"""Functions of torch on offloaded tensors: recorded, or computed with the rows of all chunks."""

from peergraph.fullgraph.offload.functions import (  # noqa: F401 (rules register themselves)
    assignment,
    channel_statistics,
    copies,
    gathering,
    hooks,
    reductions,
)
