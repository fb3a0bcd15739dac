"""Negatives from the destinations of a batch, and from lists of hard ones."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.sampling.arguments import check_int_range, check_integer_vector, check_seed
from peergraph.sampling.negative.negative_sampler import Negatives

_TRIES = 64


def in_batch_negatives(
    source: Tensor, destination: Tensor, amount: int, seed: int, *, num_nodes: int
) -> Negatives:
    """Draws destinations of other positives of a batch as negatives: nodes are drawn as often as
    they are destinations of positives.

    A pair that is a positive of the batch is drawn again, up to 64 times. Where that does not help,
    as in a batch of one positive, a random node is taken. The result depends on the arguments
    only, not on the device. Not collective; random numbers are drawn on the CPU.

    Args:
        source, destination: [P] int32 or int64 ends of the positives, on one device.
        amount: negatives per positive.
        seed: the seed of the random numbers, ``0 .. 2**64 - 1``.
        num_nodes: the number of nodes of the destinations' type.

    Returns:
        [P, amount] negatives; ``is_edge`` is None.

    Raises:
        TypeError, ValueError: ends of other kinds or lengths, a number out of range.

    Example::

        negatives = in_batch_negatives(source, destination, 8, next_seed(), num_nodes=10_000)
    """
    source, destination, generator = _check(source, destination, amount, seed, num_nodes)
    count, device = source.numel(), source.device
    shape = (count, amount)
    if count == 0:
        return _negatives(source, destination.new_empty(shape))
    source_numbers, destination_numbers = (
        torch.unique(ends, return_inverse=True)[1] for ends in (source, destination)
    )
    base = int(destination_numbers.max()) + 1
    positives = torch.unique(source_numbers * base + destination_numbers)
    own = torch.arange(count, device=device)[:, None].expand(shape)
    place = own.clone()
    open_pairs = torch.ones(shape, dtype=torch.bool, device=device)
    for _ in range(_TRIES if count > 1 else 0):
        drawn = torch.randint(count - 1, shape, generator=generator).to(device)
        drawn += (drawn >= own).long()
        place = torch.where(open_pairs, drawn, place)
        pairs = source_numbers[:, None] * base + destination_numbers[place]
        at = torch.searchsorted(positives, pairs).clamp(max=len(positives) - 1)
        open_pairs = positives[at] == pairs
        if not bool(open_pairs.any()):
            break
    random = torch.randint(num_nodes, shape, generator=generator).to(device)
    return _negatives(source, torch.where(open_pairs, random, destination[place]))


def hard_negatives(
    candidates: Tensor, source: Tensor, amount: int, seed: int, *, num_nodes: int
) -> Negatives:
    """Draws from a list of hard negatives of each source, such as those of
    :func:`peergraph.top_k` over an embedding, without the source's neighbours.

    Every candidate of a source is drawn with the same probability. A source without candidates gets
    random nodes. The result depends on the arguments only, not on the device. Not collective;
    random numbers are drawn on the CPU.

    Args:
        candidates: [sources, n] int64 ids of destinations; -1 at the end of a row: no candidate.
        source: [P] int32 or int64 sources of the positives: rows of `candidates`, on its device.
        amount, seed, num_nodes: as for :func:`in_batch_negatives`.

    Returns:
        [P, amount] negatives; ``is_edge`` is None.

    Raises:
        TypeError, ValueError: arguments of other kinds or shapes, a number out of range.
        IndexError: a source that is no row.

    Example::

        candidates = peergraph.top_k(embedding, queries, 50, exclude=(indptr, neighbors)).ids
        negatives = hard_negatives(candidates, source, 4, next_seed(), num_nodes=10_000)
    """
    source, _, generator = _check(source, source, amount, seed, num_nodes)
    if candidates.dim() != 2 or candidates.dtype != torch.int64:
        raise ValueError(
            f"candidates: expected int64 [sources, n], got {candidates.dtype} "
            f"{list(candidates.shape)}"
        )
    bad = (source < 0) | (source >= len(candidates))
    if bool(bad.any()):
        first = int(source[bad][0])
        raise IndexError(f"source: {first} is out of range for {len(candidates)} candidates")
    shape = (source.numel(), amount)
    numbers = torch.rand(shape, generator=generator, dtype=torch.float64).to(source.device)
    random = torch.randint(num_nodes, shape, generator=generator).to(source.device)
    if candidates.shape[1] == 0 or source.numel() == 0:
        return _negatives(source, random)
    rows = candidates[source]
    counts = (rows >= 0).sum(1, keepdim=True)
    place = torch.minimum((numbers * counts).long(), (counts - 1).clamp(min=0))
    return _negatives(source, torch.where(counts > 0, rows.gather(1, place), random))


def _check(
    source: Tensor, destination: Tensor, amount: int, seed: int, num_nodes: int
) -> tuple[Tensor, Tensor, torch.Generator]:
    source = check_integer_vector("source", source).long()
    destination = check_integer_vector("destination", destination).long()
    if source.shape != destination.shape:
        raise ValueError(
            f"destination: expected {source.numel()} as source, got {destination.numel()}"
        )
    check_int_range("amount", amount, 1, 2**31 - 1)
    check_int_range("num_nodes", num_nodes, 1, 2**62)
    generator = torch.Generator("cpu").manual_seed(check_seed(seed) % 2**63)
    return source, destination, generator


def _negatives(source: Tensor, destination: Tensor) -> Negatives:
    return Negatives(source[:, None].expand(destination.shape).contiguous(), destination, None)
