"""DGL's samplers and loaders on shared graphs: the core's samples as blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("peergraph_dgl", exc_type=ImportError)

import dgl
import dgl.nn as dglnn
from dgl.dataloading import (
    DataLoader,
    LaborSampler,
    MultiLayerFullNeighborSampler,
    NeighborSampler,
    as_edge_prediction_sampler,
    negative_sampler,
)

import peergraph_dgl
from peergraph.sampling import NeighborSampler as CoreSampler
from peergraph_dgl.loader import blocks as blocks_module
from tests.adapters.dgl.served import typed_graph

NODES, EDGES = 150, 1200


def plain(idtype: torch.dtype = torch.int64) -> Any:
    generator = torch.Generator().manual_seed(1)
    ends = torch.randint(0, NODES, (2, EDGES), generator=generator)
    g = dgl.graph((ends[0], ends[1]), num_nodes=NODES, idtype=idtype)
    g.ndata["x"] = torch.randn(NODES, 5, generator=generator)
    g.ndata["y"] = torch.randint(0, 3, (NODES,), generator=generator)
    g.edata["w"] = (torch.arange(EDGES) % 3).float()
    g.edata["mask"] = torch.arange(EDGES) % 2 == 0
    return g


def typed() -> Any:
    g = typed_graph()
    for ntype in g.ntypes:
        g.nodes[ntype].data["x"] = torch.randn(g.num_nodes(ntype), 4)
    g.edges["plays"].data["w"] = torch.rand(25)
    return g


@pytest.fixture
def close_stores() -> Iterator[list[Any]]:
    graphs: list[Any] = []
    yield graphs
    for g in graphs:
        peergraph_dgl.store_of(g).close()


@pytest.fixture
def shared(device: torch.device, close_stores: list[Any]) -> Any:
    def share(g: Any) -> Any:
        close_stores.append(peergraph_dgl.share(g, device=device))
        return close_stores[-1]

    return share


def number_after(seed: int) -> int:
    """What the adapter gives the core's sampler."""
    torch.manual_seed(seed)
    number = int(torch.randint(0, 2**63 - 1, ()))
    torch.manual_seed(seed)
    return number


def check_blocks(g: Any, blocks: list[Any], device: torch.device) -> None:
    """Each edge of each block is that edge of the graph; blocks follow on each other."""
    for before, after in itertools.pairwise(blocks):
        for ntype in g.ntypes:
            expected = after.srcnodes[ntype].data[dgl.NID]
            assert torch.equal(before.dstnodes[ntype].data[dgl.NID], expected)
    for block in blocks:
        assert block.is_block
        assert block.device == device
        for source, name, destination in g.canonical_etypes:
            etype = (source, name, destination)
            u, v = block.edges(etype=etype)
            ids = block.edges[etype].data[dgl.EID].cpu()
            src, dst = g.find_edges(ids, etype=etype)
            assert u.dtype == g.idtype
            assert torch.equal(block.srcnodes[source].data[dgl.NID][u.long()].cpu(), src)
            assert torch.equal(block.dstnodes[destination].data[dgl.NID][v.long()].cpu(), dst)
        for ntype in g.ntypes:
            targets = block.dstnodes[ntype].data[dgl.NID]
            sources = block.srcnodes[ntype].data[dgl.NID]
            assert torch.equal(sources[: targets.numel()], targets)


@pytest.mark.parametrize("idtype", [torch.int64, torch.int32])
@pytest.mark.usefixtures("made_of")
def test_the_cores_sample(shared: Any, device: torch.device, idtype: torch.dtype) -> None:
    g = plain(idtype)
    s = shared(g)
    seeds = torch.tensor([5, 3, 77, 20], dtype=idtype)
    number = number_after(11)
    inputs, outputs, blocks = NeighborSampler([4, 3, 2]).sample(s, seeds)
    core = CoreSampler(peergraph_dgl.store_of(s), [2, 3, 4], frontier="all")
    sample = core.sample(seeds, number)
    assert torch.equal(outputs, seeds)
    assert torch.equal(inputs, sample.nodes["_N"].to(idtype))
    for hop, block in enumerate(reversed(blocks)):
        part = sample.block(hop)
        assert torch.equal(block.edata[dgl.EID].long(), part.edge_ids)
        assert torch.equal(block.edges()[0].long(), part.row)
        assert torch.equal(block.in_degrees().long(), part.indptr.diff())
        assert block.idtype == idtype
    check_blocks(g, blocks, device)


@pytest.mark.usefixtures("made_of")
def test_types(shared: Any, device: torch.device) -> None:
    g = typed()
    s = shared(g)
    fanouts: list[Any] = [{"follows": 2, "plays": 3, "makes": 1, "played-by": 2}, 2]
    sampler = NeighborSampler(fanouts, prefetch_node_feats={"user": ["x"]})
    seeds = {"game": torch.tensor([1, 3]), "user": torch.tensor([4])}
    for _, outputs, blocks in DataLoader(s, seeds, sampler, batch_size=3, device=device):
        assert {k: v.tolist() for k, v in outputs.items()} == {"game": [1, 3], "user": [4]}
        check_blocks(g, blocks, device)
        assert int(blocks[0].in_degrees(etype="makes").max()) <= 1
        for ntype in g.ntypes:
            ids = blocks[0].srcnodes[ntype].data[dgl.NID].cpu()
            assert torch.equal(
                blocks[0].srcnodes[ntype].data["x"].cpu(), g.nodes[ntype].data["x"][ids]
            )
    with pytest.raises(dgl.DGLError, match="no entry for relation"):
        NeighborSampler([{"follows": 2}]).sample(s, seeds)
    with pytest.raises(dgl.DGLError, match="a dict by node type"):
        NeighborSampler([2]).sample(s, torch.tensor([1]))


@pytest.mark.usefixtures("made_of")
def test_all_neighbours(shared: Any, device: torch.device) -> None:
    g = plain()
    s = shared(g)
    seeds = torch.tensor([3, 9, 4])
    _, _, expected = MultiLayerFullNeighborSampler(2).sample(g, seeds)
    _, _, got = MultiLayerFullNeighborSampler(2).sample(s, seeds)
    check_blocks(g, got, device)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.num_dst_nodes() == theirs.num_dst_nodes()
        ids = ours.edata[dgl.EID].cpu()
        assert torch.equal(ids.sort().values, theirs.edata[dgl.EID].sort().values)
        assert torch.equal(ours.srcdata["x"].cpu(), g.ndata["x"][ours.srcdata[dgl.NID].cpu()])
        assert torch.equal(ours.edata["w"].cpu(), g.edata["w"][ids])


def test_replacement(shared: Any, device: torch.device) -> None:
    g = plain()
    seeds = torch.arange(20)
    _, _, blocks = NeighborSampler([30], replace=True).sample(shared(g), seeds)
    check_blocks(g, blocks, device)
    expected = torch.where(g.in_degrees(seeds) > 0, 30, 0)
    assert torch.equal(blocks[0].in_degrees().cpu(), expected)


@pytest.mark.parametrize("fanout", [2, -1])
@pytest.mark.parametrize(("option", "name"), [("prob", "w"), ("mask", "mask")])
@pytest.mark.usefixtures("made_of")
def test_weights(shared: Any, device: torch.device, option: str, name: str, fanout: int) -> None:
    """No edge without a weight is drawn, and no node that only such edges lead to."""
    g = plain()
    g.edata["mask"][g.edges()[1] % 4 == 0] = False
    s, seeds = shared(g), torch.arange(40)
    _, _, blocks = NeighborSampler([fanout, fanout], **{option: name}).sample(s, seeds)
    check_blocks(g, blocks, device)
    positive = torch.zeros(NODES, dtype=torch.int64).scatter_add_(
        0, g.edges()[1], (g.edata[name] > 0).long()
    )
    for block in blocks:
        assert bool((block.edata[name] > 0).all())
        assert bool((block.out_degrees()[block.num_dst_nodes() :] > 0).all())
        expected = positive[block.dstdata[dgl.NID].cpu()]
        if fanout > 0:
            expected = expected.clamp(max=fanout)
        assert torch.equal(block.in_degrees().cpu(), expected)


def test_what_dgl_draws(shared: Any, close_stores: list[Any]) -> None:
    """Columns of one rank and outgoing edges are left to DGL, which has the structure."""
    g = plain()
    s = shared(g)
    s.edata["w"] = (torch.arange(EDGES) < 600).float()
    _, _, blocks = NeighborSampler([3], prob="w").sample(s, torch.arange(9))
    assert bool((blocks[0].edata[dgl.EID] < 600).all())
    frontier = NeighborSampler([3], edge_dir="out")
    seeds = s.nodes()
    _, _, blocks = frontier.sample(s, seeds)
    assert int(blocks[0].out_degrees().max()) <= 3


@pytest.mark.parametrize("dependent", [False, True])
def test_labor(shared: Any, device: torch.device, dependent: bool) -> None:
    g = plain()
    s = shared(g)
    seeds = torch.arange(60)
    number = number_after(3)
    _, _, blocks = LaborSampler([4, 3], layer_dependency=dependent).sample(s, seeds)
    check_blocks(g, blocks, device)
    core = CoreSampler(
        peergraph_dgl.store_of(s), [3, 4], frontier="all", labor=True, layer_dependency=dependent
    )
    expected = core.sample(seeds, number)
    assert torch.equal(blocks[0].srcdata[dgl.NID], expected.nodes["_N"])


@pytest.mark.parametrize("exclude", ["self", "reverse_id", None])
def test_edge_prediction(shared: Any, device: torch.device, exclude: str | None) -> None:
    g = dgl.add_reverse_edges(plain(), copy_ndata=True)
    count = g.num_edges()
    reverse = torch.cat([torch.arange(count // 2, count), torch.arange(count // 2)])
    s = shared(g)
    sampler = as_edge_prediction_sampler(
        NeighborSampler([-1, 5]),
        exclude=exclude,
        reverse_eids=reverse if exclude == "reverse_id" else None,
        negative_sampler=negative_sampler.Uniform(2),
    )
    edges = torch.arange(0, 64)
    loader = DataLoader(s, edges, sampler, batch_size=16, device=device)
    num_edges = 0
    for inputs, positive, negative, blocks in loader:
        check_blocks(g, blocks, device)
        assert positive.device == negative.device == device
        assert negative.num_edges() == 2 * positive.num_edges()
        assert torch.equal(positive.ndata[dgl.NID], blocks[-1].dstdata[dgl.NID])
        assert torch.equal(blocks[0].srcdata["x"].cpu(), g.ndata["x"][inputs.cpu()])
        targets = positive.edata[dgl.EID].cpu()
        gone = torch.cat([targets, reverse[targets]] if exclude == "reverse_id" else [targets])
        for block in blocks:
            inside = torch.isin(block.edata[dgl.EID].cpu(), gone)
            assert exclude is None or not bool(inside.any())
        num_edges += positive.num_edges()
    assert num_edges == 64


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_with_prefetched_features(shared: Any, device: torch.device, workers: int) -> None:
    g = plain()
    s = shared(g)
    sampler = NeighborSampler([4, 3], prefetch_node_feats=["x"], prefetch_labels=["y"])
    loader = DataLoader(
        s, torch.arange(100), sampler, batch_size=32, shuffle=True, device=device,
        num_workers=workers,
    )  # fmt: skip
    seeds = []
    for inputs, outputs, blocks in loader:
        check_blocks(g, blocks, device)
        assert torch.equal(blocks[0].srcdata["x"].cpu(), g.ndata["x"][inputs.cpu()])
        assert torch.equal(blocks[-1].dstdata["y"].cpu(), g.ndata["y"][outputs.cpu()])
        seeds.append(outputs.cpu())
    assert torch.equal(torch.cat(seeds).sort().values, torch.arange(100))


def test_columns_of_one_rank(shared: Any, device: torch.device) -> None:
    """What a script assigns stays on the CPU; batches get it where they are."""
    g = plain()
    s = shared(g)
    hidden = torch.randn(NODES, 4)
    pinned = hidden.pin_memory() if device.type == "cuda" else hidden
    for column in (hidden, pinned):
        s.ndata["h"] = column
        for names in (["h"], None):
            sampler = MultiLayerFullNeighborSampler(1, prefetch_node_feats=names)
            for inputs, _, blocks in DataLoader(s, torch.arange(9), sampler, device=device):
                assert blocks[0].srcdata["h"].device == device
                assert torch.equal(blocks[0].srcdata["h"].cpu(), hidden[inputs.cpu()])


def test_loader_options_that_say_where_things_lie(shared: Any, device: torch.device) -> None:
    g = plain()
    loader = DataLoader(
        shared(g), torch.arange(10).to(device), NeighborSampler([2]), device=device,
        use_uva=True, gpu_cache={"node": {"x": 10}}, batch_size=5,
    )  # fmt: skip
    assert not loader.use_uva
    assert [blocks[0].device for _, _, blocks in loader] == [device] * 2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [dglnn.SAGEConv(5, 8, "mean"), dglnn.GATConv(8, 3, 2, allow_zero_in_degree=True)]
        )

    def forward(self, blocks: list[Any], x: Tensor) -> Tensor:
        x = torch.relu(self.layers[0](blocks[0], x))
        out: Tensor = self.layers[1](blocks[1], x)
        return out.mean(1)


def test_training(shared: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same losses with DGL's index and kernels as with ours."""
    s = shared(plain())

    def losses(on: torch.device) -> list[float]:
        torch.manual_seed(0)
        model = Model().to(on)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sampler = NeighborSampler([4, 4])
        losses_of_steps = []
        for _, _, blocks in DataLoader(s, torch.arange(96), sampler, batch_size=32, device=on):
            out = model(blocks, blocks[0].srcdata["x"])
            loss = torch.nn.functional.cross_entropy(out, blocks[-1].dstdata["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses_of_steps.append(loss.item())
        return losses_of_steps

    expected = losses(torch.device("cpu"))
    monkeypatch.setattr(blocks_module, "is_unsupported_by_dgl", lambda _: True)
    assert losses(device) == pytest.approx(expected, rel=1e-4)


def test_uninstall(shared: Any) -> None:
    from peergraph_dgl.loader import sampling

    s = shared(plain())
    sampling.uninstall()
    try:
        assert not hasattr(NeighborSampler.sample_blocks, "__wrapped__")
        _, _, blocks = NeighborSampler([2]).sample(s, torch.arange(4))
        assert blocks[0].num_dst_nodes() == 4
    finally:
        sampling.install()
    assert hasattr(NeighborSampler.sample_blocks, "__wrapped__")


def test_masks_of_other_nodes_or_edges(shared: Any) -> None:
    g = shared(dgl.rand_graph(30, 90))
    of_edges = as_edge_prediction_sampler(NeighborSampler([2]))
    for sampler, count in ((NeighborSampler([2]), 30), (of_edges, 90)):
        assert len(DataLoader(g, torch.ones(count) > 0, sampler, batch_size=count)) == 1
        with pytest.raises(ValueError, match=f"one element for each of {count} nodes or edges"):
            DataLoader(g, torch.ones(7) > 0, sampler, batch_size=4)


@pytest.mark.parametrize("kind", [Tensor.clone, Tensor.numpy, Tensor.tolist])
def test_masks_as_seeds(shared: Any, kind: Any) -> None:
    """DGL itself takes ids alone; of its masks, the loader takes the ids that they select."""
    g = shared(dgl.rand_graph(30, 90))
    mask = torch.arange(30) % 5 == 0
    indices = {"_N": kind(mask)} if kind is Tensor.numpy else kind(mask)
    loader = DataLoader(g, indices, NeighborSampler([2]), batch_size=4)
    seeds = torch.cat([out if isinstance(out, Tensor) else out["_N"] for _, out, _ in loader])
    assert seeds.tolist() == mask.nonzero().flatten().tolist()
    if kind is Tensor.tolist:
        with pytest.raises(TypeError, match="a list of both"):
            DataLoader(g, [True, 2], NeighborSampler([2]), batch_size=4)
