"""PyG's unmodified LinkNeighborLoader on shared data."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.loader import LinkLoader, LinkNeighborLoader
from torch_geometric.sampler import NegativeSampling, NeighborSampler

import peergraph
import peergraph_pyg
from peergraph_pyg.loader.negative_sampling import CpuNegativeSampling, RunningSums
from tests.adapters.pyg.graphs import check_batch, check_fanouts, random_data, random_hetero
from tests.named_case import named_cases
from tests.pairwise import pairwise

WRITES = ("author", "writes", "paper")


def pairs(batch: Any, index: Tensor) -> Tensor:
    """The ends of the labelled edges as ids of the whole graph."""
    return batch.n_id.cpu()[index.cpu()]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_all_edges(num_workers: int, device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    loader = LinkNeighborLoader(shared, [3, 2], batch_size=64, num_workers=num_workers)
    link_ids = []
    for batch in loader:
        check_batch(batch, data)
        check_fanouts(batch, data, [3, 2])
        assert torch.equal(pairs(batch, batch.edge_label_index), data.edge_index[:, batch.input_id])
        assert "edge_label" not in batch
        link_ids.append(batch.input_id)
    assert torch.equal(torch.cat(link_ids), torch.arange(data.num_edges))


@pytest.mark.parametrize("disjoint", [False, True])
def test_binary_negatives(disjoint: bool, device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    links = torch.tensor([[5, 5, 9], [1, 2, 50]])
    loader = LinkNeighborLoader(
        shared,
        [3, 2],
        edge_label_index=links,
        edge_label=torch.tensor([0, 1, 2]),
        neg_sampling="binary",
        batch_size=3,
        disjoint=disjoint,
    )
    batch = next(iter(loader))
    check_batch(batch, data)
    assert torch.equal(pairs(batch, batch.edge_label_index)[:, :3], links)
    assert batch.edge_label_index.shape == (2, 6)
    assert batch.edge_label.tolist() == [1, 2, 3, 0, 0, 0]
    if disjoint:
        assert batch.batch[:6].tolist() == [0, 1, 2, 0, 1, 2]
        row, col = batch.edge_index
        assert torch.equal(batch.batch[row], batch.batch[col])


@pytest.mark.parametrize("disjoint", [False, True])
def test_triplets(disjoint: bool, device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    loader = LinkNeighborLoader(
        shared,
        [2],
        neg_sampling=NegativeSampling("triplet", amount=2),
        batch_size=20,
        shuffle=True,
        disjoint=disjoint,
    )
    for batch in loader:
        check_batch(batch, data)
        size = len(batch.input_id)
        source, target = data.edge_index[:, batch.input_id]
        assert torch.equal(pairs(batch, batch.src_index), source)
        assert torch.equal(pairs(batch, batch.dst_pos_index), target)
        assert batch.dst_neg_index.shape == (size, 2)
        assert int(batch.dst_neg_index.max()) < batch.num_nodes


@pytest.mark.parametrize("neg_sampling", [None, "binary", "triplet"])
def test_heterogeneous(neg_sampling: str | None, device: torch.device) -> None:
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    loader = LinkNeighborLoader(
        shared, [2, 2], edge_label_index=WRITES, neg_sampling=neg_sampling, batch_size=16
    )
    for batch in loader:
        authors, papers = data[WRITES].edge_index[:, batch[WRITES].input_id]
        if neg_sampling == "triplet":
            source, target = batch["author"].src_index, batch["paper"].dst_pos_index
        else:
            source, target = batch[WRITES].edge_label_index[:, : len(authors)]
        assert torch.equal(batch["author"].n_id.cpu()[source.cpu()], authors)
        assert torch.equal(batch["paper"].n_id.cpu()[target.cpu()], papers)
        assert torch.equal(batch["author"].x.cpu(), data["author"].x[batch["author"].n_id.cpu()])
        e_id = batch[WRITES].e_id.cpu()
        assert torch.equal(batch[WRITES].edge_attr.cpu(), data[WRITES].edge_attr[e_id])


def test_negatives_are_pygs_own() -> None:
    """The same generator state gives the negatives that PyG's code draws."""
    data = random_data()
    shared = peergraph_pyg.share(data, device="cpu")
    sampling = NegativeSampling("triplet", amount=3)
    loader = LinkLoader(shared, NeighborSampler(shared, [1]), neg_sampling=sampling, batch_size=8)
    torch.manual_seed(3)
    batch = loader(torch.arange(8))
    torch.manual_seed(3)
    negatives = sampling.sample(24, "dst", data.num_nodes)
    assert torch.equal(pairs(batch, batch.dst_neg_index), negatives.view(8, 3))


def test_times_without_a_time_attribute() -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    times = torch.arange(400)
    with pytest.raises(TypeError, match="edge_time: expected 'edge_weight' to be one of"):
        LinkNeighborLoader(shared, [2], edge_label_time=times, time_attr="edge_weight")
    with pytest.raises(ValueError, match="edge_label_time: the sampler has no time_attr"):
        LinkLoader(shared, NeighborSampler(shared, [2]), edge_label_time=times)


def expected_negatives(sampling: NegativeSampling, size: int, ends: tuple[int, int]) -> Tensor:
    """What PyG's code draws from torch's generator: sources, if it draws any, come first."""
    count = math.ceil(size * sampling.amount)
    drawn = []
    if sampling.is_binary():
        drawn.append(sampling.sample(count, "src", ends[0]))
    drawn.append(sampling.sample(count, "dst", ends[1]))
    return torch.stack(drawn)


@named_cases(
    ("mode", "amount", "weights", "typed"),
    pairwise(
        ["binary", "triplet"],
        [1, 3, 1.5],
        [(), ("src_weight",), ("dst_weight",), ("src_weight", "dst_weight")],
        [False, True],
        # PyG takes whole numbers of triplets.
        allowed=lambda mode, amount, *_: mode == "binary" or amount != 1.5,
    ),
)
def test_negatives(
    mode: str, amount: float, weights: tuple[str, ...], typed: bool, device: torch.device
) -> None:
    """The loader draws the negatives that PyG draws of unshared data, on any device."""
    data: Any = random_hetero() if typed else random_data()
    links = data[WRITES].edge_index if typed else data.edge_index
    ends = (25, 40) if typed else (60, 60)
    random = torch.Generator().manual_seed(4)
    arguments = {
        name: torch.rand(count, generator=random) * (torch.arange(count) % 3 > 0)
        for name, count in zip(("src_weight", "dst_weight"), ends, strict=True)
        if name in weights
    }
    plain = NegativeSampling(mode, amount, **arguments)
    on_device = NegativeSampling(mode, amount, **{k: v.to(device) for k, v in arguments.items()})
    shared = peergraph_pyg.share(data, device=device)
    seeds = (WRITES, links.to(device)) if typed else links.to(device)
    loader = LinkNeighborLoader(
        shared, [2], edge_label_index=seeds, neg_sampling=on_device, batch_size=8
    )
    torch.manual_seed(3)
    batch = loader(torch.arange(8))
    torch.manual_seed(3)
    expected = expected_negatives(plain, 8, ends)
    n_ids = [batch[t].n_id.cpu() for t in WRITES[::2]] if typed else [batch.n_id.cpu()] * 2
    if mode == "binary":
        index = (batch[WRITES] if typed else batch).edge_label_index.cpu()[:, 8:]
        nodes = torch.stack([n_id[ids] for n_id, ids in zip(n_ids, index, strict=True)])
        assert torch.equal(nodes, expected)
    else:
        index = (batch["paper"] if typed else batch).dst_neg_index.cpu()
        assert torch.equal(n_ids[1][index].view(-1), expected.view(-1))
    for name, weight in arguments.items():
        drawn = expected[0 if name == "src_weight" and mode == "binary" else -1]
        if name == "dst_weight" or mode == "binary":
            assert (weight[drawn] > 0).all()


def test_shared_weights_of_negatives(device: torch.device) -> None:
    data = random_data()
    data.degree = torch.bincount(data.edge_index[1], minlength=60).float()
    shared = peergraph_pyg.share(data, device=device)
    sampling = NegativeSampling("triplet", 2, dst_weight=shared.degree)
    for batch in LinkNeighborLoader(shared, [2], neg_sampling=sampling, batch_size=100):
        assert (batch.degree.cpu()[batch.dst_neg_index.cpu()] > 0).all()
    short = NegativeSampling("binary", src_weight=torch.ones(7))
    with pytest.raises(ValueError, match=r"src_weight .* each of 60 nodes, got \[7\]"):
        next(iter(LinkNeighborLoader(shared, [2], neg_sampling=short)))


def test_settings_of_negatives_that_change(device: torch.device) -> None:
    data = peergraph_pyg.share(random_data(), device=device)
    negatives = NegativeSampling("binary", 1, dst_weight=torch.ones(data.num_nodes))
    loader = LinkNeighborLoader(data, [2], batch_size=10, neg_sampling=negatives)
    assert next(iter(loader)).edge_label.numel() == 20
    negatives.amount = 3
    assert next(iter(loader)).edge_label.numel() == 40
    negatives.dst_weight = torch.zeros(data.num_nodes)
    negatives.dst_weight[7] = 1
    batch = next(iter(loader))
    assert set(pairs(batch, batch.edge_label_index[:, 10:])[1].tolist()) == {7}


@pytest.mark.parametrize("shared", [False, True])
def test_weights_that_are_written_between_batches(shared: bool, device: torch.device) -> None:
    """PyG reads the weights in every batch, also values that torch does not know to be written."""
    data = random_data()
    data.weight = torch.ones(data.num_nodes)
    graph = peergraph_pyg.share(data, device=device)
    plain = torch.ones(data.num_nodes, device=device)
    weights = graph.weight if shared else plain
    negatives = NegativeSampling("binary", 1, dst_weight=weights)
    loader = LinkNeighborLoader(graph, [2], batch_size=10, neg_sampling=negatives)
    for node in (7, 9):
        only = torch.zeros(data.num_nodes)
        only[node] = 1
        if shared:
            graph.weight[:] = only
        else:
            plain.data.copy_(only)
        batch = next(iter(loader))
        assert set(pairs(batch, batch.edge_label_index[:, 10:])[1].tolist()) == {node}


def test_more_weights_than_torch_draws_from() -> None:
    count = (1 << 24) + 5
    weights = torch.zeros(count)
    weights[[3, count - 1]] = torch.tensor([1.0, 3.0])
    negatives = NegativeSampling("binary", dst_weight=weights)
    sums = RunningSums()

    def draw(number: int) -> Tensor:
        return CpuNegativeSampling(negatives, (count, count), sums).sample(number, "dst", count)

    drawn = draw(4000)
    assert drawn.unique().tolist() == [3, count - 1]
    assert 2850 < int((drawn == count - 1).sum()) < 3150
    assert sums.of("dst", weights) is sums.of("dst", weights)
    weights.numpy()[3] = 0  # a write that raises no version
    assert draw(100).unique().tolist() == [count - 1]


@pytest.mark.parametrize("storage", [None, "int8"])
def test_top_k_of_shared_features(storage: str | None, device: torch.device) -> None:
    data = random_data()
    options = {} if storage is None else {"storage": {"x": storage}}
    shared = peergraph_pyg.share(data, device=device, **options)
    queries = torch.randn(4, 5)
    values, ids = peergraph.top_k(shared.x, queries, 7)
    products = queries.double() @ shared.x[:].cpu().double().T
    order = products.sort(dim=1, descending=True, stable=True).indices[:, :7]
    assert ids.cpu().equal(order)
    assert torch.allclose(values.cpu().double(), products.gather(1, order), atol=1e-6)
