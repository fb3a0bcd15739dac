"""Selections and kept sums follow what masks, ids and features hold, however these were changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from peergraph.fullgraph import FullGraph, PartitionedTensor, distribute
from peergraph.fullgraph.layout.content_digest import content_digest
from peergraph.memory import Group
from peergraph.testing import run_ranks

NODES = 40
EDGE = ("_N", "_E", "_N")
WRITES: dict[str, Callable[[Tensor], object]] = {
    "ids": lambda mask: mask.__setitem__(torch.arange(5, 15), True),
    "range": lambda mask: mask.__setitem__(slice(20, 30), False),
    "data": lambda mask: mask.data.logical_not_(),
    "or": lambda mask: mask.__ior__(~mask),
    "one rank's rows": lambda mask: mask.__setitem__(7, ~mask[7]),
    "zeros": lambda mask: mask.zero_(),
}


def memory_of(mask: Tensor) -> Tensor:
    """Memory of the mask that torch does not know as its own; of one rank only."""
    if isinstance(mask, PartitionedTensor):
        local = mask.to_local()
        return torch.from_numpy(local.numpy()) if mask.row_layout.group.rank == 0 else local.clone()
    return mask


def selections_after_writes(x: Tensor, mask: Tensor, ids: Tensor) -> list[float]:
    results = []
    for write in WRITES.values():
        write(mask)
        results.append(float(x[mask].sum()))
        ids += 3
        ids %= NODES
        results.append(float((x[ids] * torch.arange(1, 9)).sum()))
    return results


def check_selections() -> None:
    generator = torch.Generator().manual_seed(2)
    x, mask = (
        torch.randn(NODES, 8, generator=generator, dtype=torch.float64),
        torch.arange(NODES) % 3 == 0,
    )
    ids = torch.randint(NODES, (NODES,), generator=generator)
    graph = FullGraph.build(
        Group.current("cpu"),
        {"_N": NODES},
        {EDGE: torch.randint(NODES, (2, 200), generator=generator)},
    )
    layout = graph.node_layouts["_N"]
    parted = [distribute(value, layout) for value in (x, mask, ids)]
    result = selections_after_writes(*parted)
    torch.testing.assert_close(result, selections_after_writes(x, mask.clone(), ids.clone()))
    plain = torch.arange(NODES) % 2 == 0
    for _ in range(3):  # a plain mask and a list of ids, changed behind torch's back
        torch.testing.assert_close(parted[0][plain].full_tensor(), x[plain])
        torch.testing.assert_close(parted[0][ids].full_tensor(), x[ids])
        plain.numpy()[5:9] ^= True
        ids.numpy()[:] = (ids.numpy() + 1) % NODES
    mask_of_rank = parted[1]
    for rows in (slice(0, 2), slice(1, 3)):
        memory_of(mask_of_rank)[rows] = True
        full = mask_of_rank.full_tensor()
        torch.testing.assert_close(parted[0][mask_of_rank].full_tensor(), x[full])


@pytest.mark.parametrize("ranks", [1, 3])
def test_selections_follow_what_masks_and_ids_hold(ranks: int) -> None:
    run_ranks(check_selections, ranks)


def check_kept_sums() -> None:
    group = Group.current("cpu")
    generator = torch.Generator().manual_seed(2)
    edges = torch.randint(NODES, (2, 200), generator=generator)
    x = torch.randn(NODES, 8, generator=generator, dtype=torch.float64)
    structure = FullGraph.build(group, {"_N": NODES}, {EDGE: edges}).structures[EDGE]
    parted = distribute(x, structure.source_layout)
    for step in range(6):
        expected = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])
        actual = structure.spmm("copy_u", "sum", parted).full_tensor()
        torch.testing.assert_close(actual, expected)
        if step % 2:
            x.mul_(-1)
            parted.data.mul_(-1)
        elif step == 4:  # rows that one rank has
            x[3] += 1
            parted[3] += 1


@pytest.mark.parametrize("ranks", [1, 3])
def test_kept_sums_follow_what_features_hold(ranks: int) -> None:
    run_ranks(check_kept_sums, ranks)


def test_a_digest_is_of_all_bytes() -> None:
    x = torch.randn(1200, 64, dtype=torch.float64)
    digests = {content_digest(x)}
    for row, column in [(0, 0), (511, 31), (1199, 63)]:
        x[row, column] += 1
        digests.add(content_digest(x))
    digests |= {content_digest(x.neg()), content_digest(x.t()), content_digest(x.view(600, 128))}
    x[[0, 1]] = x[[1, 0]]
    digests |= {content_digest(x), content_digest(x.view(torch.int64))}
    assert len(digests) == 9, len(digests)
    assert content_digest(x) == content_digest(x.clone())
    lazy = torch.randn(40, dtype=torch.complex64, device=x.device).conj()
    assert (
        content_digest(lazy) == content_digest(lazy.resolve_conj()) != content_digest(lazy.conj())
    )
    assert content_digest(lazy.imag) == content_digest(lazy.imag.resolve_neg())
    large = torch.zeros(3 << 20, dtype=torch.float16)  # of several pieces
    before = content_digest(large)
    large[-1] = 1
    assert content_digest(large) != before
