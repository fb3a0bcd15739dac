"""Imports PyG, for processes that fork others, without initialising CUDA.

PyG reads from torch's configuration whether torch has MKL. torch initialises CUDA to write this
text, and forks of such a process cannot use CUDA.
"""

from __future__ import annotations

from unittest.mock import patch

import torch

_MKL = "USE_MKL=ON" if torch.backends.mkl.is_available() else "USE_MKL=OFF"

with patch.object(torch.__config__, "show", return_value=_MKL):
    import torch_geometric  # noqa: F401
