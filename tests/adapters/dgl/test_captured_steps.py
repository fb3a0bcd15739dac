"""`peergraph_dgl.capture`: the seeds, samples and losses of a loop over DGL's loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("peergraph_dgl", exc_type=ImportError)

import dgl
import dgl.nn as dglnn
from dgl.dataloading import (
    DataLoader,
    LaborSampler,
    MultiLayerFullNeighborSampler,
    NeighborSampler,
    as_edge_prediction_sampler,
)

import peergraph_dgl
from peergraph.integration import SampleCounts, has_static_shapes
from peergraph.integration.captured import captured_training
from peergraph.memory.device.capture_mode import is_capturing
from peergraph_dgl.loader import blocks as blocks_module
from tests.adapters.captured_results import adam, assert_same_results, loop_results

NODES, WIDTH, CLASSES, BATCH = 400, 10, 4, 32
SEEDS = torch.arange(20, 20 + 5 * BATCH + 7)


@pytest.fixture(params=["library", "tensors"])
def made_of(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> str:
    """Blocks of the CPU with DGL's own index, and with that of blocks on a GPU."""
    if request.param == "tensors":
        if device.type != "cpu":
            pytest.skip("blocks on a GPU are made of tensors anyway")
        monkeypatch.setattr(blocks_module, "is_unsupported_by_dgl", lambda _: True)
    return str(request.param)


@pytest.fixture
def shared(device: torch.device) -> Iterator[Any]:
    graphs: list[Any] = []

    def share(g: Any) -> Any:
        graphs.append(peergraph_dgl.share(g, device=device))
        return graphs[-1]

    yield share
    for g in graphs:
        peergraph_dgl.store_of(g).close()


def plain(idtype: torch.dtype = torch.int64) -> Any:
    random = torch.Generator().manual_seed(1)
    ends = torch.randint(NODES, (2, 5000), generator=random)
    g = dgl.graph((ends[0], ends[1]), num_nodes=NODES, idtype=idtype)
    g.ndata["x"] = torch.randn(NODES, WIDTH, generator=random)
    g.ndata["y"] = torch.randint(CLASSES, (NODES,), generator=random)
    g.edata["w"] = torch.rand(5000, generator=random)
    return g


class Model(nn.Module):
    """Layers of DGL over the blocks of a batch."""

    def __init__(self, kind: str, hops: int) -> None:
        super().__init__()
        sizes = [WIDTH, *[12] * (hops - 1), CLASSES]
        self.layers = nn.ModuleList(map(self._layer, [kind] * hops, sizes, sizes[1:]))
        self.kind = kind

    @staticmethod
    def _layer(kind: str, size: int, out: int) -> nn.Module:
        if kind == "gat":
            return dglnn.GATConv(size, out, 1, allow_zero_in_degree=True)
        if kind == "gcn":
            return dglnn.GraphConv(size, out, allow_zero_in_degree=True)
        return dglnn.SAGEConv(size, out, "mean")

    def forward(self, blocks: Any, h: Tensor) -> Tensor:
        for block, layer in zip(blocks, self.layers, strict=True):
            if self.kind == "weights":
                h = layer(block, h, edge_weight=block.edata["w"]).relu()
            else:
                h = layer(block, h).flatten(1).relu()
        return h


def make_model(kind: str, device: torch.device, fast: bool = True, hops: int = 2) -> nn.Module:
    torch.manual_seed(5)
    model = Model(kind, hops).to(device)
    return peergraph_dgl.accelerate(model) if fast else model


def loss_of(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    _, output_nodes, blocks = batch
    size = len(output_nodes)
    out = model(blocks, blocks[0].srcdata["x"])[:size]
    return F.cross_entropy(out, blocks[-1].dstdata["y"][:size]), output_nodes


def make_loader(g: Any, device: torch.device, sampler: Any = None, **options: Any) -> DataLoader:
    """Returns a loader of five full batches and one of 7 seeds, in a random order."""
    options = {"indices": SEEDS.to(g.idtype), "batch_size": BATCH, "shuffle": True, **options}
    return DataLoader(
        g, options.pop("indices"), sampler or NeighborSampler([4, 5]), device=device, **options
    )


def seed_all() -> None:
    torch.manual_seed(9)
    np.random.seed(9)  # noqa: NPY002  # DGL's loader draws the order of seeds from it


def loop(loader: Any, model: nn.Module, loss: Any = loss_of, epochs: int = 2) -> list[Any]:
    seed_all()
    return loop_results(loader, model, loss, epochs)


def run(training: Any, epochs: int = 2) -> list[Any]:
    seed_all()
    return [result for _ in range(epochs) for result in training]


def check(loader: Any, make: Any, loss: Any = loss_of) -> Any:
    """Checks the losses of two epochs; returns the training."""
    order = loader.dataset._indices.clone()
    expected = loop(loader, make(), loss)
    loader.dataset._indices.copy_(order)  # it is shuffled in place
    model = make()
    training = peergraph_dgl.capture(loader, model, adam(model), loss)
    assert_same_results(run(training), expected)
    return training


@pytest.mark.parametrize(
    ("kind", "fast"),
    [("sage", True), ("sage", False), ("weights", True), ("gcn", True), ("gat", True)],
)
def test_losses_are_those_of_the_loop(
    shared: Any, device: torch.device, made_of: str, kind: str, fast: bool
) -> None:
    training = check(make_loader(shared(plain()), device), lambda: make_model(kind, device, fast))
    assert len(training) == 6
    assert training.num_eager == 2
    assert training.num_captured == (10 - 3 if device.type == "cuda" else 0)


@pytest.mark.parametrize("kind", ["int32", "labor", "full", "replace", "prefetch", "in order"])
def test_samplers_and_options(shared: Any, device: torch.device, kind: str) -> None:
    samplers: dict[str, Any] = {
        "labor": LaborSampler([4, 5], layer_dependency=True),
        "full": MultiLayerFullNeighborSampler(2),
        "replace": NeighborSampler([4, 5], replace=True),
        "prefetch": NeighborSampler(
            [4, 5], prefetch_node_feats=["x"], prefetch_labels=["y"], prefetch_edge_feats=["w"]
        ),
    }
    options = {"shuffle": False, "drop_last": True} if kind == "in order" else {}
    g = shared(plain(torch.int32 if kind == "int32" else torch.int64))
    loader = make_loader(g, device, samplers.get(kind), **options)
    kind_of_model = "weights" if kind == "prefetch" else "sage"
    training = check(loader, lambda: make_model(kind_of_model, device))
    assert training.num_eager == (0 if kind == "in order" else 2)


def test_a_graph_without_dgl_inside(shared: Any, device: torch.device) -> None:
    g = peergraph_dgl.from_store(peergraph_dgl.store_of(shared(plain())))
    check(make_loader(g, device), lambda: make_model("sage", device))


def test_batches_that_exceed_the_shape(
    shared: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their steps are those of the loop, and counted; the next epoch's shape has room."""
    find = captured_training.find_bounds

    def too_small(*args: Any) -> SampleCounts:
        nodes, edges = find(*args)
        return SampleCounts({t: [n[0], n[1] - 40, *n[2:]] for t, n in nodes.items()}, edges)

    monkeypatch.setattr(captured_training, "find_bounds", too_small)
    training = check(make_loader(shared(plain()), device), lambda: make_model("sage", device))
    assert 4 <= training.num_eager < 12


class Typed(nn.Module):
    """A layer for each relation."""

    def __init__(self, relations: list[str], kind: str) -> None:
        super().__init__()

        def layer(size: int, out: int) -> nn.Module:
            if kind == "gat":
                return dglnn.GATConv(size, out, 1, allow_zero_in_degree=True)
            return dglnn.SAGEConv(size, out, "mean")

        self.convs = nn.ModuleList(
            dglnn.HeteroGraphConv({r: layer(size, out) for r in relations})
            for size, out in ((WIDTH, 12), (12, CLASSES))
        )

    def forward(self, blocks: Any, x: dict[str, Tensor]) -> dict[str, Tensor]:
        for block, conv in zip(blocks, self.convs, strict=True):
            x = {t: rows.flatten(1).relu() for t, rows in conv(block, x).items()}
        return x


@pytest.mark.parametrize("kind", ["sage", "gat"])
def test_types(shared: Any, device: torch.device, kind: str) -> None:
    random = torch.Generator().manual_seed(1)
    sizes = {"user": NODES, "item": 150}

    def ends(source: str, destination: str, count: int) -> Any:
        return tuple(
            torch.randint(sizes[t], (count,), generator=random) for t in (source, destination)
        )

    g = dgl.heterograph(
        {
            ("user", "buys", "item"): ends("user", "item", 2000),
            ("item", "bought", "user"): ends("item", "user", 2000),
            ("user", "knows", "user"): ends("user", "user", 3000),
        },
        num_nodes_dict=sizes,
    )
    for node_type, count in sizes.items():
        g.nodes[node_type].data["x"] = torch.randn(count, WIDTH, generator=random)
    g.nodes["user"].data["y"] = torch.randint(CLASSES, (NODES,), generator=random)
    relations = g.etypes

    def make() -> nn.Module:
        torch.manual_seed(5)
        return peergraph_dgl.accelerate(Typed(relations, kind).to(device))

    def loss(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        _, output_nodes, blocks = batch
        seeds = output_nodes["user"]
        is_captured = is_capturing(device)
        if kind == "gat" and has_static_shapes() and not is_captured:
            with torch.no_grad():
                reasons = str(peergraph_dgl.explain(model, blocks, blocks[0].srcdata["x"]))
            assert "attention of 3 relations in one pass" in reasons
        out = model(blocks, blocks[0].srcdata["x"])["user"][: len(seeds)]
        return F.cross_entropy(out, blocks[-1].dstnodes["user"].data["y"][: len(seeds)]), seeds

    loader = make_loader(shared(g), device, indices={"user": SEEDS})
    training = check(loader, make, loss)
    assert training.num_eager == 2


def test_losses_that_depend_on_padding(shared: Any, device: torch.device) -> None:
    loader = make_loader(shared(plain()), device)

    def all_sources(model: nn.Module, batch: Any) -> Tensor:
        return loss_of(model, batch)[0] + batch[2][0].srcdata["x"].mean()

    def all_seeds(model: nn.Module, batch: Any) -> Tensor:
        return loss_of(model, batch)[0] + batch[2][-1].dstdata["x"].mean()

    def all_edges(model: nn.Module, batch: Any) -> Tensor:
        return loss_of(model, batch)[0] + batch[2][0].edata["w"].mean()

    for loss in (all_sources, all_seeds, all_edges):
        model = make_model("sage", device)
        training = peergraph_dgl.capture(loader, model, adam(model), loss)
        with pytest.raises(ValueError, match="depends on rows of padding"):
            next(iter(training))


def refused_loader(g: Any, kind: str) -> Any:
    cpu, sampler = torch.device("cpu"), NeighborSampler([4, 5])
    if kind == "list":
        return [g]
    if kind == "unshared":
        return make_loader(plain(), cpu)
    samplers = {
        "prob": NeighborSampler([4, 5], prob="w"),
        "edge_dir": NeighborSampler([4, 5], edge_dir="out"),
        "links": as_edge_prediction_sampler(sampler),
        "importance": LaborSampler([4, 5], importance_sampling=1),
    }
    options: dict[str, Any] = {"indices": torch.tensor([NODES])} if kind == "indices" else {}
    return make_loader(g, cpu, samplers.get(kind), **options)


@pytest.mark.parametrize(
    ("kind", "error", "match"),
    [
        ("list", TypeError, "must be a dgl.dataloading.DataLoader, got list"),
        ("unshared", TypeError, r"not over a graph that peergraph_dgl.share\(\) returned"),
        ("prob", NotImplementedError, r"NeighborSampler \(prob='w'\) is not supported"),
        ("edge_dir", NotImplementedError, r"NeighborSampler \(edge_dir='out'\) is not supported"),
        ("importance", NotImplementedError, r"LaborSampler \(importance_sampling=1\)"),
        ("links", NotImplementedError, "EdgePredictionSampler .* is not supported by capture"),
        ("indices", IndexError, f"indices: an id is out of range for {NODES} nodes"),
    ],
)
def test_refused(kind: str, error: type[Exception], match: str) -> None:
    g = peergraph_dgl.share(plain(), device=torch.device("cpu"))
    model = make_model("sage", torch.device("cpu"))
    with pytest.raises(error, match=match):
        peergraph_dgl.capture(refused_loader(g, kind), model, adam(model), loss_of)
    peergraph_dgl.store_of(g).close()
