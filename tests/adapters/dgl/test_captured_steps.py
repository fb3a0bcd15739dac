"""`peergraph_dgl.capture`: the seeds, samples and losses of a loop over DGL's loader."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("peergraph_dgl", exc_type=ImportError)

import dgl
import dgl.nn as dglnn
from dgl.dataloading import (
    LaborSampler,
    MultiLayerFullNeighborSampler,
    NeighborSampler,
    as_edge_prediction_sampler,
)

import peergraph_dgl
from peergraph.integration import has_static_shapes
from peergraph.memory.device.capture_mode import is_capturing
from tests.adapters.captured_results import adam, shrink_shapes
from tests.adapters.dgl.captured_training import (
    CLASSES,
    EDGES,
    NODES,
    SEEDS,
    WIDTH,
    check,
    loss_of,
    make_loader,
    make_model,
    plain,
)


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


@pytest.mark.parametrize(
    "kind",
    ["int32", "labor", "full", "replace", "prefetch", "in order", "prob", "prob, replace", "mask"],
)
def test_samplers_and_options(shared: Any, device: torch.device, kind: str) -> None:
    samplers: dict[str, Any] = {
        "labor": LaborSampler([4, 5], layer_dependency=True),
        "full": MultiLayerFullNeighborSampler(2),
        "replace": NeighborSampler([4, 5], replace=True),
        "prob": NeighborSampler([4, 5], prob="p"),
        "prob, replace": NeighborSampler([4, 5], prob="p", replace=True),
        "mask": NeighborSampler([-1, 3], mask="mask"),
        "prefetch": NeighborSampler(
            [4, 5], prefetch_node_feats=["x"], prefetch_labels=["y"], prefetch_edge_feats=["w"]
        ),
    }
    options = {"shuffle": False, "drop_last": True} if kind == "in order" else {}
    g = shared(plain(torch.int32 if kind == "int32" else torch.int64))
    loader = make_loader(g, device, samplers.get(kind), **options)
    kind_of_model = "weights" if kind in ("prefetch", "prob", "mask") else "sage"
    training = check(loader, lambda: make_model(kind_of_model, device))
    assert training.num_eager == (0 if kind == "in order" else 2)


def test_a_graph_without_dgl_inside(shared: Any, device: torch.device) -> None:
    g = peergraph_dgl.from_store(peergraph_dgl.store_of(shared(plain())))
    check(make_loader(g, device), lambda: make_model("sage", device))


def test_batches_that_exceed_the_shape(
    shared: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their steps are those of the loop, and counted; the next epoch's shape has room."""
    shrink_shapes(monkeypatch, 1, 40)
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
    if kind == "prob":
        g.edata["own"] = torch.ones(EDGES)
    if kind == "list":
        return [g]
    if kind == "graphbolt":
        gb = pytest.importorskip("dgl.graphbolt")
        return gb.DataLoader(gb.ItemSampler(gb.ItemSet(NODES, names="seed_nodes"), 4))
    if kind == "unshared":
        return make_loader(plain(), cpu)
    samplers = {
        "prob": NeighborSampler([4, 5], prob="own"),
        "edge_dir": NeighborSampler([4, 5], edge_dir="out"),
        "links": as_edge_prediction_sampler(NeighborSampler([4, 5], edge_dir="out")),
        "importance": LaborSampler([4, 5], importance_sampling=1),
    }
    options: dict[str, Any] = {"indices": torch.tensor([NODES])} if kind == "indices" else {}
    if kind == "edges":
        samplers["edges"] = as_edge_prediction_sampler(sampler)
        options["indices"] = torch.tensor([EDGES])
    return make_loader(g, cpu, samplers.get(kind), **options)


@pytest.mark.parametrize(
    ("kind", "error", "match"),
    [
        ("list", TypeError, "must be a dgl.dataloading.DataLoader, got list"),
        ("graphbolt", NotImplementedError, "use a dgl.dataloading.DataLoader over the shared"),
        ("unshared", TypeError, r"not over a graph that peergraph_dgl.share\(\) returned"),
        ("prob", NotImplementedError, r"NeighborSampler \(prob='own', which is no shared column"),
        ("edge_dir", NotImplementedError, r"NeighborSampler \(edge_dir='out'\) is not supported"),
        ("importance", NotImplementedError, r"LaborSampler \(importance_sampling=1\)"),
        ("links", NotImplementedError, r"NeighborSampler \(edge_dir='out'\) is not supported"),
        ("indices", IndexError, f"indices: an id is out of range for {NODES} nodes"),
        ("edges", IndexError, f"indices: an id is out of range for {EDGES} edges"),
    ],
)
def test_refused(kind: str, error: type[Exception], match: str) -> None:
    g = peergraph_dgl.share(plain(), device=torch.device("cpu"))
    model = make_model("sage", torch.device("cpu"))
    with pytest.raises(error, match=match):
        peergraph_dgl.capture(refused_loader(g, kind), model, adam(model), loss_of)
    peergraph_dgl.store_of(g).close()
