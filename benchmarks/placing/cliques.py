"""Placement by cliques, Quiver's policy: what XGNN's solver is compared with (XGNN 4.2, 6.6)."""

from __future__ import annotations

from peergraph.memory.table.partitions import Partitions
from peergraph.memory.topology.topology import Topology
from peergraph.store.placement.policies import POLICIES, Policy


def place_by_cliques(topology: Topology) -> Partitions:
    """Splits the GPUs into fully linked cliques, each of which stores every partition once.

    The cliques are of one size, the largest for which there is such a split, so that all GPUs store
    equally much: in XGNN 6.6 pairs on the ring of four and on six GPUs, two cliques of four on
    eight. Links between cliques stay idle. Where nothing else fits, every GPU is a clique of its
    own and stores all.
    """
    cliques = equal_cliques(topology)
    count = topology.num_gpus
    stored: list[tuple[int, ...]] = [()] * count
    source: list[tuple[int, ...]] = [()] * count
    for clique in cliques:
        holder = tuple(clique[part % len(clique)] for part in range(count))
        for gpu in clique:
            stored[gpu] = tuple(part for part in range(count) if holder[part] == gpu)
            source[gpu] = holder
    return Partitions("clique", tuple(stored), tuple(source))


def equal_cliques(topology: Topology) -> list[tuple[int, ...]]:
    """The GPUs in fully linked cliques of one size, as large as possible."""
    count = topology.num_gpus
    mutual = [
        {j for j in topology.neighbors(i) if i in topology.neighbors(j)} for i in range(count)
    ]
    for size in range(count, 1, -1):
        if count % size == 0:
            split = _split(list(range(count)), size, mutual)
            if split is not None:
                return split
    return [(gpu,) for gpu in range(count)]


def _split(left: list[int], size: int, mutual: list[set[int]]) -> list[tuple[int, ...]] | None:
    """Cliques of `size` that cover `left`; None where there are none."""
    if not left:
        return []
    first, others = left[0], [g for g in left[1:] if g in mutual[left[0]]]
    for clique in _cliques((first,), others, size, mutual):
        rest = _split([g for g in left if g not in clique], size, mutual)
        if rest is not None:
            return [clique, *rest]
    return None


def _cliques(
    chosen: tuple[int, ...], others: list[int], size: int, mutual: list[set[int]]
) -> list[tuple[int, ...]]:
    """All cliques of `size` with `chosen` and some of `others`, which all know `chosen`."""
    if len(chosen) == size:
        return [chosen]
    larger = []
    for k, gpu in enumerate(others):
        candidates = [g for g in others[k + 1 :] if g in mutual[gpu]]
        larger += _cliques((*chosen, gpu), candidates, size, mutual)
    return larger


# Every rank of a benchmark imports this module, so that all know the plans by name.
POLICIES["clique"] = Policy(place_by_cliques, False)  # Quiver
POLICIES["clique-opt"] = Policy(place_by_cliques, True)  # Song and Jiang's CliqueOpt
