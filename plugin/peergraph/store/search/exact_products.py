"""Inner products whose bits depend on the two vectors only."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_CHUNK_ELEMENTS = 1 << 23


def exact_products(rows_of: Callable[[Tensor], Tensor], ids: Tensor, queries: Tensor) -> Tensor:
    """Returns the products of each query with rows of its own: float64 [Q, n].

    They are computed in float64 and added in pairs, in the same order on every device and for
    every number of rows.

    Args:
        rows_of: returns the rows of ids [m] as ``[m, columns]``, of a floating dtype.
        ids: [Q, n] int64 ids of rows; -1: none, whose product is ``-inf``.
        queries: float64 [Q, columns].
    """
    columns = queries.shape[1]
    out = torch.full(ids.shape, -torch.inf, dtype=torch.float64, device=queries.device)
    if ids.numel() == 0:
        return out
    width = 1
    while width < columns:
        width *= 2
    step = max(1, _CHUNK_ELEMENTS // (ids.shape[1] * width))
    for begin in range(0, len(ids), step):
        part = ids[begin : begin + step]
        rows = rows_of(part.clamp(min=0).view(-1)).view(*part.shape, columns).double()
        terms = torch.nn.functional.pad(
            rows * queries[begin : begin + step, None], (0, width - columns)
        )
        while terms.shape[-1] > 1:
            half = terms.shape[-1] // 2
            terms = terms[..., :half] + terms[..., half:]
        out[begin : begin + step] = torch.where(part < 0, -torch.inf, terms.squeeze(-1))
    return out
