"""What GraphBolt's example scripts do, from end to end, on a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("peergraph_dgl", exc_type=ImportError)
pytest.importorskip("peergraph_dgl.graphbolt", exc_type=ImportError)

import dgl
import dgl.nn as dglnn
from dgl import graphbolt as gb

from peergraph_dgl.graphbolt import FeatureStore, SamplingGraph

NODES, CLASSES = 300, 3


def communities() -> Any:
    """A graph whose classes can be learnt."""
    generator = torch.Generator().manual_seed(2)
    label = torch.arange(NODES) % CLASSES
    dst = torch.randint(0, NODES, (12 * NODES,), generator=generator)
    src = torch.randint(0, NODES // CLASSES, dst.shape, generator=generator) * CLASSES + label[dst]
    g = dgl.graph((src, dst), num_nodes=NODES)
    g.ndata["feat"] = F.one_hot(label, CLASSES) + torch.randn(NODES, CLASSES, generator=generator)
    g.ndata["label"] = label
    return g


class Sage(torch.nn.Module):
    """As the scripts have it; the hidden width is not that of the features."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            dglnn.SAGEConv(sizes[i], sizes[i + 1], "mean") for i in range(len(sizes) - 1)
        )

    def forward(self, blocks: list[Any], x: torch.Tensor) -> torch.Tensor:
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            x = x if i == len(self.layers) - 1 else x.relu()
        return x


def node_loader(
    graph: Any, features: Any, items: Any, device: torch.device, job: str, feature: str = "feat"
) -> Any:
    pipe = gb.ItemSampler(items, batch_size=64, shuffle=job == "train")
    pipe = pipe.copy_to(device, extra_attrs=["seed_nodes"])
    pipe = pipe.sample_neighbor(graph, [6, 4] if job != "infer" else [-1])
    pipe = pipe.fetch_feature(features, node_feature_keys=[feature])
    return gb.DataLoader(pipe, num_workers=0)


@torch.no_grad()
def layer_wise(model: Sage, graph: Any, features: Any, device: torch.device, name: str) -> Any:
    """All nodes, one layer after the other; what a layer gives is the next one's feature."""
    everything = gb.ItemSet(graph.total_num_nodes, names="seed_nodes")
    result = torch.empty(0)
    for i, layer in enumerate(model.layers):
        last = i == len(model.layers) - 1
        loader = node_loader(graph, features, everything, device, "infer", name if i else "feat")
        result = torch.empty(graph.total_num_nodes, layer._out_feats)
        for batch in loader:
            x = batch.node_features[name if i else "feat"]
            out = layer(batch.blocks[0], x)
            seeds = batch.seed_nodes.cpu()
            result[seeds[0] : seeds[-1] + 1] = (out if last else out.relu()).cpu()
        if not last:
            features.update("node", None, name, result)
    return result


@pytest.mark.parametrize("name", ["feat", "hidden"])
@pytest.mark.parametrize("width", [CLASSES, 16])
def test_node_classification(
    share: Callable[[Any], Any], device: torch.device, name: str, width: int
) -> None:
    """Layer-wise inference gives what the model gives on the whole graph."""
    torch.manual_seed(0)
    g = communities()
    store = share(g)
    graph, features = SamplingGraph(store), FeatureStore(store)
    graph, features = graph.to("pinned"), features.to("pinned")
    train, test = torch.arange(0, 200), torch.arange(200, NODES)
    model = Sage([features.size("node", None, "feat")[0], width, CLASSES]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    train_items = gb.ItemSet((train, g.ndata["label"][train]), names=("seed_nodes", "labels"))
    loader = node_loader(graph, features, train_items, device, "train")
    for _ in range(4):
        for batch in loader:
            loss = F.cross_entropy(
                model(batch.blocks, batch.node_features["feat"]), batch.labels.to(device)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    got = layer_wise(model, graph, features, device, name)
    accuracy = (got[test].argmax(-1) == g.ndata["label"][test]).float().mean()
    assert accuracy > 0.5
    model.cpu()
    with torch.no_grad():
        expected = model([g, g], g.ndata["feat"])
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    # What has another width than the table was this object's alone.
    is_unchanged = name == "hidden" or width != CLASSES
    stored = FeatureStore(store).read("node", None, "feat")
    assert torch.equal(stored, g.ndata["feat"]) == is_unchanged


def test_link_prediction(share: Callable[[Any], Any], device: torch.device) -> None:
    torch.manual_seed(0)
    g = communities()
    store = share(g)
    graph, features = SamplingGraph(store), FeatureStore(store)
    pairs = torch.stack(g.edges(), dim=1)
    train, test = gb.ItemSet(pairs[:400], names="node_pairs"), pairs[400:500]
    negatives = torch.randint(0, NODES, (100, 5))

    def loader(items: Any, job: str) -> Any:
        pipe = gb.ItemSampler(items, batch_size=100, shuffle=job == "train")
        pipe = pipe.copy_to(device, extra_attrs=["node_pairs", "negative_dsts"])
        if job == "train":
            pipe = pipe.sample_uniform_negative(graph, 1)
        pipe = pipe.sample_neighbor(graph, [5, 5] if job == "train" else [-1, -1])
        if job == "train":
            pipe = pipe.transform(gb.exclude_seed_edges)
        pipe = pipe.fetch_feature(features, node_feature_keys=["feat"])
        return gb.DataLoader(pipe.copy_to(device))

    model = Sage([CLASSES, 16, 8]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(4):
        for batch in loader(train, "train"):
            (src, dst), labels = batch.node_pairs_with_labels
            y = model(batch.blocks, batch.node_features["feat"])
            loss = F.binary_cross_entropy_with_logits((y[src] * y[dst]).sum(-1), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    items = gb.ItemSet((test, negatives), names=("node_pairs", "negative_dsts"))
    hidden = layer_wise(model, graph, features, device, "hidden")
    with torch.no_grad():
        for batch in loader(items, "evaluate"):
            y = model(batch.blocks, batch.node_features["feat"]).cpu()
            rows = batch.sampled_subgraphs[-1].original_column_node_ids.cpu()
            torch.testing.assert_close(y, hidden[rows], rtol=1e-3, atol=1e-4)
            src, dst = (ends.cpu() for ends in batch.compacted_node_pairs)
            positive = (y[src] * y[dst]).sum(-1)
            negative = (y[src, None] * y[batch.compacted_negative_dsts.cpu()]).sum(-1)
            assert (positive[:, None] > negative).float().mean() > 0.6


def test_typed_nodes_by_embeddings(share: Callable[[Any], Any], device: torch.device) -> None:
    """The way of the R-GCN script: types that have no features get embeddings."""
    torch.manual_seed(0)
    g = dgl.heterograph(
        {
            ("author", "writes", "paper"): (torch.randint(0, 40, (200,)), torch.arange(200) % 60),
            ("paper", "cites", "paper"): (torch.randint(0, 60, (150,)), torch.arange(150) % 60),
            ("paper", "rev_writes", "author"): (torch.arange(200) % 60, torch.arange(200) % 40),
        }
    )
    g.nodes["paper"].data["feat"] = torch.randn(60, 8)
    store = share(g)
    graph, features = SamplingGraph(store), FeatureStore(store)
    assert graph.metadata.node_type_to_id == graph.node_type_to_id == {"author": 0, "paper": 1}
    offsets = graph.node_type_offset
    assert offsets.tolist() == [0, 40, 100]
    assert (graph.total_num_nodes, graph.total_num_edges) == (100, 550)
    counts = {t: int(offsets[i + 1] - offsets[i]) for t, i in graph.node_type_to_id.items()}
    embed = dglnn.HeteroEmbedding({"author": counts["author"]}, 8).to(device)
    relations = [gb.etype_str_to_tuple(name)[1] for name in graph.edge_type_to_id]
    layers = torch.nn.ModuleList(
        dglnn.HeteroGraphConv({name: dglnn.GraphConv(8, 8, norm="right") for name in relations}).to(
            device
        )
        for _ in range(2)
    )
    seeds = gb.ItemSetDict(
        {
            "paper": gb.ItemSet(
                (torch.arange(60), torch.arange(60) % 2), names=("seed_nodes", "labels")
            )
        }
    )
    pipe = gb.ItemSampler(seeds, batch_size=20, shuffle=True)
    pipe = pipe.copy_to(device, extra_attrs=["seed_nodes"])
    pipe = pipe.sample_neighbor(graph, [4, 4])
    pipe = pipe.fetch_feature(features, node_feature_keys={"paper": ["feat"]})
    num_seeds = 0
    for batch in gb.DataLoader(pipe):
        h = embed({"author": batch.input_nodes["author"]})
        h["paper"] = batch.node_features["paper", "feat"]
        for layer, block in zip(layers, batch.blocks, strict=True):
            h = layer(block, h)
        loss = F.cross_entropy(h["paper"], batch.labels["paper"].to(device))
        loss.backward()
        num_seeds += h["paper"].shape[0]
    assert num_seeds == 60
    assert all(parameter.grad is not None for parameter in embed.parameters())


def test_batches_for_pyg(share: Callable[[Any], Any], device: torch.device) -> None:
    pytest.importorskip("torch_geometric")
    g = communities()
    store = share(g)
    items = gb.ItemSet((torch.arange(50), g.ndata["label"][:50]), names=("seed_nodes", "labels"))
    loader = node_loader(SamplingGraph(store), FeatureStore(store), items, device, "train")
    for batch in loader:
        data = batch.to_pyg_data()
        nodes = batch.input_nodes.cpu()
        assert torch.equal(data.x.cpu(), g.ndata["feat"][nodes])
        src, dst = nodes[data.edge_index.cpu()]
        assert bool(g.has_edges_between(src, dst).all())


def test_items_by_ranks(share: Callable[[Any], Any], device: torch.device) -> None:
    """The sampler of items for several ranks, in one process group of one."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        store = share(communities())
        graph, features = SamplingGraph(store), FeatureStore(store)
        items = gb.ItemSet(torch.arange(50), names="seed_nodes")
        pipe = gb.DistributedItemSampler(items, batch_size=20, drop_uneven_inputs=True)
        pipe = pipe.copy_to(device, extra_attrs=["seed_nodes"])
        pipe = pipe.sample_layer_neighbor(graph, [3])
        pipe = pipe.fetch_feature(features, node_feature_keys=["feat"])
        assert sum(batch.seed_nodes.numel() for batch in gb.DataLoader(pipe)) == 50
    finally:
        torch.distributed.destroy_process_group()
