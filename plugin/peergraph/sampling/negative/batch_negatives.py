"""Negatives from the destinations of a batch, and from lists of hard ones."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.sampling.arguments import check_int_range, check_integer_vector, check_seed
from peergraph.sampling.negative.negative_sampler import Negatives
from peergraph.sampling.negative.node_windows import NodeWindows

_TRIES = 64


def in_batch_negatives(
    source: Tensor,
    destination: Tensor,
    amount: int,
    seed: int,
    *,
    num_nodes: int,
    windows: NodeWindows | None = None,
) -> Negatives:
    """Draws destinations of other positives of a batch as negatives: nodes are drawn as often as
    they are destinations of positives.

    With windows of time, nodes are drawn among the destinations in the positive's window. A pair
    that is a positive of the batch is drawn again, up to 64 times. Where that does not help, as in
    a batch of one positive, a random node is taken, with windows one in the window
    (:meth:`NodeWindows.draw`). The result depends on the arguments only, not on the device. Not
    collective; random numbers are drawn on the CPU.

    Args:
        source, destination: [P] int32 or int64 ends of the positives, on one device.
        amount: negatives per positive.
        seed: the seed of the random numbers, ``0 .. 2**64 - 1``.
        num_nodes: the number of nodes of the destinations' type.
        windows: of time, one for each positive; None: all nodes.

    Returns:
        [P, amount] negatives; ``is_edge`` is None.

    Raises:
        TypeError, ValueError: ends of other kinds or lengths, a number out of range.

    Example::

        negatives = in_batch_negatives(source, destination, 8, next_seed(), num_nodes=10_000)
    """
    source, destination, generator = _check(source, destination, amount, seed, num_nodes, windows)
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
    in_window = None if windows is None else _InWindow(windows, destination)
    for _ in range(_TRIES if count > 1 else 0):
        if in_window is None:
            drawn = torch.randint(count - 1, shape, generator=generator, device="cpu").to(device)
            drawn += (drawn >= own).long()
        else:
            numbers = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
            drawn = in_window.place(numbers.to(device))
        place = torch.where(open_pairs, drawn, place)
        pairs = source_numbers[:, None] * base + destination_numbers[place]
        at = torch.searchsorted(positives, pairs).clamp(max=len(positives) - 1)
        open_pairs = positives[at] == pairs
        if not bool(open_pairs.any()):
            break
    drawn = _replace(destination[place], open_pairs, num_nodes, windows, generator)
    return _negatives(source, drawn)


def hard_negatives(
    candidates: Tensor,
    source: Tensor,
    amount: int,
    seed: int,
    *,
    num_nodes: int,
    windows: NodeWindows | None = None,
) -> Negatives:
    """Draws from a list of hard negatives of each source, such as those of
    :func:`peergraph.top_k` over an embedding, without the source's neighbours.

    Every candidate of a source, with windows of time every one in the positive's window, is drawn
    with the same probability. A source without such candidates gets random nodes (with windows,
    those of :meth:`NodeWindows.draw`). The result depends on the arguments only, not on the
    device. Not collective; random numbers are drawn on the CPU.

    Args:
        candidates: [sources, n] int64 ids of destinations; -1 at the end of a row: no candidate.
        source: [P] int32 or int64 sources of the positives: rows of `candidates`, on its device.
        amount, seed, num_nodes, windows: as for :func:`in_batch_negatives`.

    Returns:
        [P, amount] negatives; ``is_edge`` is None.

    Raises:
        TypeError, ValueError: arguments of other kinds or shapes, a number out of range.
        IndexError: a source that is no row.

    Example::

        candidates = peergraph.top_k(embedding, queries, 50, exclude=(indptr, neighbors)).ids
        negatives = hard_negatives(candidates, source, 4, next_seed(), num_nodes=10_000)
    """
    source, _, generator = _check(source, source, amount, seed, num_nodes, windows)
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
    numbers = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
    numbers = numbers.to(source.device)
    if candidates.shape[1] == 0 or source.numel() == 0:
        drawn, without = source[:, None].expand(shape), torch.ones_like(numbers, dtype=torch.bool)
    else:
        rows = candidates[source]
        admitted = rows >= 0
        if windows is not None:
            admitted &= windows.admit(windows.times_of(rows.clamp(min=0)))
        counts = admitted.sum(1, keepdim=True)
        number = torch.minimum((numbers * counts).long(), counts - 1) + 1
        # The place at which so many of the candidates so far are admitted.
        place = torch.searchsorted(admitted.cumsum(1), number.clamp(min=1))
        drawn, without = rows.gather(1, place.clamp(max=rows.shape[1] - 1)), counts == 0
    return _negatives(source, _replace(drawn, without, num_nodes, windows, generator))


class _InWindow:
    """The destinations of a batch that are in the window of each positive."""

    def __init__(self, windows: NodeWindows, destination: Tensor) -> None:
        times, self._order = windows.times_of(destination).sort(stable=True)
        self._begin = torch.searchsorted(times, windows.earliest)[:, None]
        self._end = torch.searchsorted(times, windows.latest, right=True)[:, None]

    def place(self, numbers: Tensor) -> Tensor:
        """Returns places ``[P, amount]`` of destinations for numbers from 0 to below 1; the
        positive's own place, which is no negative, where its window has none.
        """
        counts = self._end - self._begin
        number = torch.minimum((numbers * counts).long(), counts - 1).clamp(min=0)
        last = len(self._order) - 1
        drawn = self._order[(self._begin + number).clamp(max=last)]
        own = torch.arange(len(numbers), device=drawn.device)[:, None]
        return torch.where(counts > 0, drawn, own)


def _replace(
    drawn: Tensor,
    at: Tensor,
    num_nodes: int,
    windows: NodeWindows | None,
    generator: torch.Generator,
) -> Tensor:
    """Returns negatives ``[P, amount]`` with random nodes at the places of a mask."""
    if windows is None:
        random = torch.randint(num_nodes, drawn.shape, generator=generator, device="cpu")
        random = random.to(drawn.device)
        return torch.where(at, random, drawn)
    positives, column = at.expand(drawn.shape).nonzero(as_tuple=True)
    drawn = drawn.clone()
    drawn[positives, column] = windows.draw(
        positives,
        lambda count: torch.randint(num_nodes, (count,), generator=generator, device="cpu"),
        generator=generator,
    )
    return drawn


def _check(
    source: Tensor,
    destination: Tensor,
    amount: int,
    seed: int,
    num_nodes: int,
    windows: NodeWindows | None,
) -> tuple[Tensor, Tensor, torch.Generator]:
    source = check_integer_vector("source", source).long()
    destination = check_integer_vector("destination", destination).long()
    if source.shape != destination.shape:
        raise ValueError(
            f"destination: expected {source.numel()} as source, got {destination.numel()}"
        )
    if windows is not None and windows.latest.shape != source.shape:
        raise ValueError(
            f"windows: expected {source.numel()} as source, got {windows.latest.numel()}"
        )
    check_int_range("amount", amount, 1, 2**31 - 1)
    check_int_range("num_nodes", num_nodes, 1, 2**62)
    generator = torch.Generator("cpu").manual_seed(check_seed(seed) % 2**63)
    return source, destination, generator


def _negatives(source: Tensor, destination: Tensor) -> Negatives:
    return Negatives(source[:, None].expand(destination.shape).contiguous(), destination, None)
