"""Prints a digest of what every kernel computes on the CPU, for a comparison of machines:

    ATEN_CPU_CAPABILITY=default python -m tests.kernels.digests >here.txt

Each machine prints the same lines, whatever its processor, except those of :data:`TORCH_ADDS`. The
variable has torch draw normal numbers, which are inputs, one after the other.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tests.kernels import (  # noqa: F401
    aggregate_cases,
    fullgraph_cases,
    memory_cases,
    sampling_cases,
)
from tests.kernels.cases import CASES

# Here gradients end in a sum of torch's, whose order depends on its vectors.
TORCH_ADDS = ("sums", "activations")


def digest(tensors: Iterable[Tensor]) -> str:
    """The first 16 digits of the SHA-256 of dtypes, shapes and bytes."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        values = tensor.detach().flatten().clone(memory_format=torch.contiguous_format)
        total.update(values.view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def main(names: Sequence[str]) -> int:
    cpu = torch.device("cpu")
    for name in names or CASES:
        note = "  # torch adds" if name in TORCH_ADDS else ""
        print(f"{name} {digest(CASES[name].run(cpu))}{note}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
