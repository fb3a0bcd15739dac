"""Exclusion of edges from a sample, such as the target edges of link prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, islice, pairwise

import torch
from torch import Tensor

from peergraph.memory.table.id_list import integers
from peergraph.sampling.arguments import check_integer_tensor
from peergraph.sampling.sample import EdgeType, NodeType, Sample

Edges = Tensor | Mapping[EdgeType, Tensor]
Reverse = Tensor | Mapping[EdgeType, tuple[EdgeType, Tensor | None]]

# Slots of the table of the last bits of excluded ids, on the CPU; it fits into the L1 cache.
_FEWEST_SLOTS = 1 << 12


def exclude_edges(
    sample: Sample,
    edge_ids: Edges | None = None,
    *,
    pairs: Edges | None = None,
    reverse: Reverse | None = None,
) -> Sample:
    """Removes edges from a sample, such as the edges to be predicted and their reverses (DGL's
    ``exclude=``), and returns the new sample.

    Hops, counts and blocks describe the remaining edges. All nodes remain, also nodes that only an
    excluded edge led to. Ids and pairs that the sample does not hold are ignored. The given sample
    is not changed.

    Runs where the sample is, on the current stream; the host waits for sizes a few times a
    relation. Not collective.

    Args:
        sample: a sample of :meth:`NeighborSampler.sample`.
        edge_ids: users' ids of the edges to remove; by edge type where there are several.
        pairs: [2, P] users' ids of sources and destinations: all edges from ``pairs[0, i]`` to
            ``pairs[1, i]`` are removed; by edge type where there are several.
        reverse: also remove the reverses of `edge_ids`: a tensor that maps an edge id to its
            reverse's, where there is one relation, or by edge type: the reverse edge type and the
            map (None: a reverse has the same id). Reverses of `pairs` need no map: give them too.

    Raises:
        ValueError: neither `edge_ids` nor `pairs`; `edge_ids` of a sample without edge ids; an
            unknown edge type, or none where there are several; a tensor of another shape;
            `reverse` without `edge_ids`.
        TypeError: ids that are no int32 or int64 tensor.
        IndexError: an edge id that `reverse` has no entry for.
    """
    if edge_ids is None and pairs is None:
        raise ValueError("edge_ids, pairs: expected one of them at least")
    if reverse is not None and edge_ids is None:
        raise ValueError("reverse: needs edge_ids")
    remaining = {t: torch.ones_like(row, dtype=torch.bool) for t, row in sample.row.items()}
    if edge_ids is not None:
        if sample.edge_ids is None:
            raise ValueError("edge_ids: the sample has none (edge_ids=False)")
        by_type = _by_type("edge_ids", edge_ids, sample, 1)
        for t, ids in _with_reverse(by_type, reverse, sample):
            remaining[t] &= ~_contained(sample.edge_ids[t], ids)
    if pairs is not None:
        for t, ends in _by_type("pairs", pairs, sample, 2).items():
            source_ids, destination_ids = sample.nodes[t[0]], sample.nodes[t[2]]
            remaining[t] &= ~edges_between(
                sample.row[t], sample.col[t], source_ids, destination_ids, ends
            )
    return _filtered(sample, remaining)


def _by_type(name: str, edges: Edges, sample: Sample, dims: int) -> dict[EdgeType, Tensor]:
    """Converts the argument to int64 tensors by edge type, on the sample's device."""
    if isinstance(edges, Tensor):
        if len(sample.row) != 1:
            raise ValueError(f"{name}: expected a dict by edge type, one of {list(sample.row)}")
        edges = dict.fromkeys(sample.row, edges)
    checked = {}
    for edge_type, ids in edges.items():
        if edge_type not in sample.row:
            raise ValueError(f"{name}: {edge_type!r} is not one of {list(sample.row)}")
        ids = check_integer_tensor(name, ids)
        if ids.dim() != dims or (dims == 2 and ids.shape[0] != 2):
            expected = "one dimension" if dims == 1 else "shape [2, P]"
            raise ValueError(f"{name}: expected {expected}, got shape {tuple(ids.shape)}")
        checked[edge_type] = ids.to(sample.row[edge_type].device, torch.int64)
    return checked


def _with_reverse(
    edge_ids: dict[EdgeType, Tensor], reverse: Reverse | None, sample: Sample
) -> list[tuple[EdgeType, Tensor]]:
    """Returns the ids and the ids of their reverse edges."""
    if reverse is None:
        return list(edge_ids.items())
    if isinstance(reverse, Tensor):
        if len(sample.row) != 1:
            raise ValueError(f"reverse: expected a dict by edge type, one of {list(sample.row)}")
        reverse = {t: (t, reverse) for t in sample.row}
    excluded = list(edge_ids.items())
    for edge_type, ids in edge_ids.items():
        if edge_type not in reverse:
            continue
        back, id_map = reverse[edge_type]
        if back not in sample.row:
            raise ValueError(f"reverse: {back!r} is not one of {list(sample.row)}")
        excluded.append((back, ids if id_map is None else _mapped(id_map, ids)))
    return excluded


def _mapped(id_map: Tensor, ids: Tensor) -> Tensor:
    id_map = integers(id_map)
    if id_map.dim() != 1 or id_map.dtype not in (torch.int32, torch.int64):
        raise TypeError(
            f"reverse: expected an int32 or int64 tensor of one dimension, got {id_map.dtype} of "
            f"shape {tuple(id_map.shape)}"
        )
    bad = (ids < 0) | (ids >= id_map.numel())
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise IndexError(
            f"edge_ids[{first}] = {int(ids[first])} is out of range for a reverse map of "
            f"{id_map.numel()} edges"
        )
    return id_map[ids.to(id_map.device)].to(ids.device, torch.int64)


def edges_between(
    row: Tensor, col: Tensor, source_ids: Tensor, destination_ids: Tensor, pairs: Tensor
) -> Tensor:
    """Tells which edges of a sample connect one of the given pairs of nodes.

    Runs where the sample is; synchronises on a GPU. Not collective.

    Args:
        row, col: [E] int32 or int64 sources and destinations, as positions in the ids.
        source_ids, destination_ids: int64 ids of the rows of the two node types.
        pairs: [2, P] int64 ids of sources and destinations, on the device of the sample.

    Returns:
        [E] bool: whether the edge goes from ``pairs[0, i]`` to ``pairs[1, i]`` for some ``i``.
    """
    row, col = row.long(), col.long()
    if row.numel() == 0 or pairs.numel() == 0:
        return torch.zeros_like(row, dtype=torch.bool)
    # Pairs of positions among the pairs' nodes fit into 64 bits; pairs of ids may not.
    sources, destinations = torch.unique(pairs[0]), torch.unique(pairs[1])
    source, is_source = find_ids(sources, source_ids)
    destination, is_destination = find_ids(destinations, destination_ids)
    count = destinations.numel()
    pair_numbers = find_ids(sources, pairs[0])[0] * count + find_ids(destinations, pairs[1])[0]
    edges = source[row] * count + destination[col]
    return is_source[row] & is_destination[col] & _contained(edges, pair_numbers)


def _contained(elements: Tensor, ids: Tensor) -> Tensor:
    """As torch.isin(elements, ids) for few `ids`: torch.isin would sort the elements."""
    if ids.numel() == 0:
        return torch.zeros_like(elements, dtype=torch.bool)
    if elements.device.type != "cpu":
        return find_ids(torch.unique(ids), elements)[1]
    # The last bits rule out most elements without a search.
    size = max(_FEWEST_SLOTS, 8 << (ids.numel() - 1).bit_length())
    slots = torch.zeros(size, dtype=torch.bool, device="cpu")
    slots[ids & (size - 1)] = True
    is_contained = slots[elements & (size - 1)]
    candidates = is_contained.nonzero()[:, 0]
    is_contained[candidates] = find_ids(torch.unique(ids), elements[candidates])[1]
    return is_contained


def find_ids(ascending: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the positions of ids in `ascending`, which is not empty, and which are in it."""
    positions = torch.searchsorted(ascending, ids.contiguous()).clamp(max=ascending.numel() - 1)
    return positions, ascending[positions] == ids


def _filtered(sample: Sample, remaining: dict[EdgeType, Tensor]) -> Sample:
    """Returns the sample with the kept edges only."""
    # The number of kept edges before each edge: its new position.
    before = {
        t: torch.cat([k.new_zeros(1, dtype=torch.int64), k.cumsum(0)]) for t, k in remaining.items()
    }
    ends = {t: [0, *accumulate(counts)] for t, counts in sample.num_sampled_edges.items()}
    new_ends = _to_host({t: places[ends[t]] for t, places in before.items()})
    edge_ids = sample.edge_ids
    left = {t: k.nonzero()[:, 0] for t, k in remaining.items()}
    return replace(
        sample,
        row={t: row[left[t]] for t, row in sample.row.items()},
        col={t: col[left[t]] for t, col in sample.col.items()},
        edge_ids=None if edge_ids is None else {t: ids[left[t]] for t, ids in edge_ids.items()},
        duplicate_counts=_fewer_duplicates(sample, remaining),
        num_sampled_edges={
            t: [b - a for a, b in pairwise(of_type)] for t, of_type in new_ends.items()
        },
        indptr={
            t: [
                before[t][indptr + begin] - new_begin
                for indptr, begin, new_begin in zip(of_type, ends[t], new_ends[t], strict=False)
            ]
            for t, of_type in sample.indptr.items()
        },
    )


def _to_host(numbers: dict[EdgeType, Tensor]) -> dict[EdgeType, list[int]]:
    """Copies all numbers to the host at once."""
    if not numbers:
        return {}
    flat = iter(torch.cat(list(numbers.values())).tolist())
    return {t: list(islice(flat, n.numel())) for t, n in numbers.items()}


def _fewer_duplicates(
    sample: Sample, remaining: dict[EdgeType, Tensor]
) -> dict[NodeType, Tensor] | None:
    if sample.duplicate_counts is None:
        return None
    counts = {t: c.clone() for t, c in sample.duplicate_counts.items()}
    for edge_type, row in sample.row.items():
        gone = row[~remaining[edge_type]].long()
        ones = torch.ones_like(gone, dtype=torch.int32)
        counts[edge_type[0]].scatter_add_(0, gone, -ones)
    return counts
