"""Random numbers and dropout keyed by row."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from peergraph.fullgraph.random.kernels import DISTRIBUTIONS, dropout_rows, fill_random, keep_rows
from peergraph.fullgraph.tensor.relu import apply_bitmask, relu_bitmask
from tests.kernels.cases import case

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@case("fill_random_rows")
def random_numbers(device: torch.device) -> Iterator[Tensor]:
    """Widths of whole vectors and others; row ids beyond 32 bits."""
    ids = torch.arange(70, device=device) * 2**33
    for dtype in DTYPES:
        for columns in (1, 2, 7, 32):
            for distribution in DISTRIBUTIONS:
                yield fill_random(distribution, 3, ids, columns, dtype)


@case("dropout_rows")
def dropouts(device: torch.device) -> Iterator[Tensor]:
    """Widths of whole vectors and others, aligned and not."""
    ids = torch.arange(70, device=device) * 2**33
    for dtype in DTYPES:
        for columns in (1, 4, 7, 32):
            values = torch.arange(70 * columns + 1, device=device).to(dtype)
            for x in (values[:-1], values[1:]):
                yield dropout_rows(x.view(70, columns), 0.4, 3, ids)
            yield keep_rows(0.4, 3, ids, columns, dtype)


@case("activate", "activate_backward")
def relus(device: torch.device) -> Iterator[Tensor]:
    """Counts of elements that fill the last byte of the bits and that do not; zeros and NaN."""
    for dtype in DTYPES:
        for count in (1, 8, 13, 1000):
            x = torch.arange(count, device=device).remainder(7).sub(3).to(dtype)
            x[count // 2] = torch.nan
            out, bits = relu_bitmask(x)
            yield from (out.nan_to_num(), bits, apply_bitmask(torch.ones_like(x), bits))
