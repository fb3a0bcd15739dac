"""The GPUs that Peergraph can use."""

from __future__ import annotations

import torch

from peergraph import _C


def num_gpus() -> int:
    """Returns the number of GPUs that torch finds; 0 if the CUDA part was not compiled."""
    return torch.cuda.device_count() if _C.has_cuda else 0
