"""Link batches without the target links."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.sampler import NegativeSampling

import peergraph_pyg
from peergraph_pyg import ExcludeTargets
from tests.adapters.pyg.graphs import random_data, random_hetero
from tests.named_case import named_cases
from tests.pairwise import pairwise

WRITES = ("author", "writes", "paper")
REV_WRITES = ("paper", "rev_writes", "author")
NEGATIVES = [None, "binary", NegativeSampling("binary", 2.5), "triplet"]


def triples(batch: Any, key: Any, index: torch.Tensor) -> list[tuple[int, int, int]]:
    """Tree, source and destination of each column."""
    parts = [batch, batch] if key is None else [batch[key[0]], batch[key[2]]]
    ends = [part.n_id.cpu()[i] for part, i in zip(parts, index.cpu(), strict=True)]
    has_trees = "batch" in parts[0]
    trees = parts[0].batch.cpu()[index[0].cpu()] if has_trees else torch.zeros_like(ends[0])
    return list(zip(trees.tolist(), *(e.tolist() for e in ends), strict=True))


def same_but_for(
    batch: Any, full: Any, key: Any, links: set[tuple[int, int, int]], flipped: bool
) -> int:
    """Compares the edges of a type; returns how many were taken out."""
    mine, other = (batch, full) if key is None else (batch[key], full[key])
    stays = []
    for tree, source, destination in triples(full, key, other.edge_index):
        link = (tree, destination, source) if flipped else (tree, source, destination)
        stays.append(link not in links)
    stays = torch.tensor(stays, dtype=torch.bool)
    assert torch.equal(mine.edge_index.cpu(), other.edge_index.cpu()[:, stays])
    assert torch.equal(mine.e_id.cpu(), other.e_id.cpu()[stays])
    assert torch.equal(mine.edge_attr.cpu(), other.edge_attr.cpu()[stays])
    if "num_sampled_edges" in other:
        parts = stays.split(other.num_sampled_edges)
        assert mine.num_sampled_edges == [int(part.sum()) for part in parts]
    return int((~stays).sum())


def positives(batch: Any, key: Any, ends: torch.Tensor) -> set[tuple[int, int, int]]:
    """Trees of their ends, sources and destinations."""
    first, second = [batch, batch] if key is None else [batch[key[0]], batch[key[2]]]
    ids = batch.input_id if key is None else batch[key].input_id
    if "src_index" in first:
        rows = first.src_index, second.dst_pos_index
    else:
        rows = (batch if key is None else batch[key]).edge_label_index[:, : len(ids)]
    links: set[tuple[int, int, int]] = set()
    for part, of_part in zip((first, second), rows, strict=True):
        trees = part.batch.cpu()[of_part.cpu()] if "batch" in part else torch.zeros_like(ids)
        links |= set(zip(trees.tolist(), *ends[:, ids].tolist(), strict=True))
    return links


@named_cases(
    ("neg_sampling", "disjoint", "reverse"), pairwise(NEGATIVES, [False, True], [False, True])
)
def test_one_type(neg_sampling: Any, disjoint: bool, reverse: bool, device: torch.device) -> None:
    data = random_data()
    edges = torch.cat([data.edge_index[:, :200], data.edge_index[:, :200].flip(0)], dim=1)
    edges[:, 7] = edges[0, 7]  # an edge from a node to itself
    data.edge_index = edges
    shared = peergraph_pyg.share(data, device=device)
    options = {"batch_size": 50, "neg_sampling": neg_sampling, "disjoint": disjoint}
    num_excluded = 0
    for some in range(0, 400, 50):
        batches = []
        for transform in (ExcludeTargets(reverse=reverse), None):
            loader = LinkNeighborLoader(
                shared, [-1, 4], transform_sampler_output=transform, **options
            )
            torch.manual_seed(some)
            batches.append(loader(list(range(some, some + 50))))
        assert torch.equal(batches[0].n_id, batches[1].n_id)
        links = positives(batches[1], None, edges)
        links |= {(tree, b, a) for tree, a, b in links} if reverse else set()
        num_excluded += same_but_for(*batches, None, links, flipped=False)
    assert num_excluded >= 400 * (1 + reverse)


@named_cases("neg_sampling", NEGATIVES)
@pytest.mark.parametrize("disjoint", [False, True])
def test_types(neg_sampling: Any, disjoint: bool, device: torch.device) -> None:
    data = random_hetero()
    data[REV_WRITES].edge_attr = torch.rand(data[REV_WRITES].num_edges, 2)
    shared = peergraph_pyg.share(data, device=device)
    ends = data[WRITES].edge_index
    options = {"edge_label_index": WRITES, "neg_sampling": neg_sampling, "disjoint": disjoint}
    transform = ExcludeTargets(WRITES, reverse=REV_WRITES)
    num_excluded = 0
    for workers in (0, 2):
        excluding = LinkNeighborLoader(
            shared,
            [-1, -1],
            transform_sampler_output=transform,
            batch_size=40,
            num_workers=workers,
            **options,
        )
        for batch in excluding:
            own, back = (
                {link[1:] for link in triples(batch, key, batch[key].edge_index)}
                for key in (WRITES, REV_WRITES)
            )
            links = {link[1:] for link in positives(batch, WRITES, ends)}
            if not disjoint:
                assert not links & own
                assert not {(b, a) for a, b in links} & back
    for some in range(0, ends.size(1), 40):
        which = list(range(some, min(some + 40, ends.size(1))))
        pair = []
        for hook in (transform, None):
            loader = LinkNeighborLoader(
                shared, [-1, -1], transform_sampler_output=hook, batch_size=40, **options
            )
            torch.manual_seed(some)
            pair.append(loader(which))
        links = positives(pair[1], WRITES, ends)
        num_excluded += same_but_for(*pair, WRITES, links, flipped=False)
        num_excluded += same_but_for(*pair, REV_WRITES, links, flipped=True)
    assert num_excluded > 0


def test_subgraphs_without_hops() -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    for kind in ("induced", "bidirectional"):
        loader = LinkNeighborLoader(
            shared, [2], subgraph_type=kind, transform_sampler_output=ExcludeTargets()
        )
        for number in (0, 9):
            batch = loader([number])
            link = random_data().edge_index[:, number].tolist()
            assert link not in batch.n_id[batch.edge_index].t().tolist()


def test_errors() -> None:
    typed = peergraph_pyg.share(random_hetero(), device="cpu")
    wrong: list[tuple[ExcludeTargets, str]] = [
        (ExcludeTargets(), "edge_type must be one of the edge types .* got None"),
        (ExcludeTargets(("a", "b", "c")), "edge_type must be one of"),
        (ExcludeTargets(WRITES, reverse=True), "reverse must be one of the edge types .* got True"),
    ]
    for transform, message in wrong:
        loader = LinkNeighborLoader(
            typed, [2], edge_label_index=WRITES, transform_sampler_output=transform
        )
        with pytest.raises(ValueError, match=message):
            loader([0, 1])
    plain: Data = peergraph_pyg.share(random_data(), device="cpu")
    with pytest.raises(ValueError, match="expected a batch of a link loader"):
        NeighborLoader(plain, [2], transform_sampler_output=ExcludeTargets())([0])
