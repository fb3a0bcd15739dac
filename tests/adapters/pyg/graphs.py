"""Random PyG graphs and independent references for batches, for the tests of the PyG adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData


def random_data(num_nodes: int = 60, num_edges: int = 400, seed: int = 0) -> Data:
    """A multigraph with self loops and isolated nodes, and attributes of many kinds."""
    random = torch.Generator().manual_seed(seed)
    # The last nodes have no edges; the first ones have most.
    ends = torch.rand(2, num_edges, generator=random).square() * (num_nodes - 3)
    return Data(
        x=torch.randn(num_nodes, 5, generator=random),
        edge_index=ends.long(),
        edge_attr=torch.randn(num_edges, 2, 3, generator=random),
        edge_weight=torch.arange(num_edges, dtype=torch.float64),
        y=torch.randint(0, 4, (num_nodes,), generator=random),
        train_mask=torch.rand(num_nodes, generator=random) < 0.4,
        half=torch.randn(num_nodes, 3, generator=random).half(),
        graph_label=torch.tensor([3.0]),
        name="random",
    )


def random_hetero(seed: int = 0) -> HeteroData:
    """Authors write papers, papers cite papers; venues have no features and few edges."""
    random = torch.Generator().manual_seed(seed)

    def edges(sources: int, targets: int, count: int) -> Tensor:
        source = torch.randint(sources, (count,), generator=random)
        return torch.stack([source, torch.randint(targets, (count,), generator=random)])

    data = HeteroData()
    data["paper"].x = torch.randn(40, 4, generator=random)
    data["paper"].y = torch.randint(0, 3, (40,), generator=random)
    data["paper"].train_mask = torch.rand(40, generator=random) < 0.5
    data["author"].x = torch.randn(25, 3, generator=random)
    data["venue"].num_nodes = 6
    data["author", "writes", "paper"].edge_index = edges(25, 40, 150)
    data["author", "writes", "paper"].edge_attr = torch.randn(150, 2, generator=random)
    data["paper", "rev_writes", "author"].edge_index = edges(40, 25, 120)
    data["paper", "cites", "paper"].edge_index = edges(40, 40, 200)
    data["venue", "prints", "paper"].edge_index = edges(6, 40, 12)
    data.title = "library"
    return data


def full_hops(edge_index: Tensor, seeds: Tensor, hops: int) -> dict[str, Any]:
    """What sampling all neighbours must give: plain loops over the definition.

    In-neighbours in the order of a CSC made by a stable sort, targets in the order they were found,
    new nodes in the order of first appearance, only new nodes expanded.
    """
    sources = edge_index[0].tolist()
    in_edges: dict[int, list[int]] = {}
    for edge, target in enumerate(edge_index[1].tolist()):
        in_edges.setdefault(target, []).append(edge)
    nodes = seeds.tolist()
    local = {node: position for position, node in reversed(list(enumerate(nodes)))}
    row: list[int] = []
    col: list[int] = []
    edges: list[int] = []
    num_nodes, num_edges, begin = [len(nodes)], [], 0
    for _ in range(hops):
        end, edges_before = len(nodes), len(edges)
        for target in range(begin, end):
            for edge in in_edges.get(nodes[target], []):
                source = sources[edge]
                if source not in local:
                    local[source] = len(nodes)
                    nodes.append(source)
                row.append(local[source])
                col.append(target)
                edges.append(edge)
        num_nodes.append(len(nodes) - end)
        num_edges.append(len(edges) - edges_before)
        begin = end
    return {
        "n_id": torch.tensor(nodes),
        "edge_index": torch.tensor([row, col]),
        "e_id": torch.tensor(edges),
        "num_sampled_nodes": num_nodes,
        "num_sampled_edges": num_edges,
    }


def check_batch(batch: Any, data: Data) -> None:
    """Everything a batch says about nodes and edges is what the original data says."""
    n_id, e_id = batch.n_id.cpu(), batch.e_id.cpu()
    row, col = batch.edge_index.cpu()
    assert torch.equal(torch.stack([n_id[row], n_id[col]]), data.edge_index[:, e_id])
    for key, value in data.items():
        if key == "edge_index":
            continue
        if data.is_node_attr(key):
            assert torch.equal(batch[key].cpu(), value[n_id]), key
        elif data.is_edge_attr(key):
            assert torch.equal(batch[key].cpu(), value[e_id]), key
    assert len(batch.n_id) == batch.num_nodes


def check_typed_batch(batch: Any, data: HeteroData) -> None:
    """Nodes, edges and attributes of every type are those of the original data."""
    for node_type in data.node_types:
        n_id = batch[node_type].n_id.cpu()
        assert batch[node_type].num_nodes == len(n_id)
        for key, value in data[node_type].items():
            if isinstance(value, Tensor):
                assert torch.equal(batch[node_type][key].cpu(), value[n_id])
    for edge_type in data.edge_types:
        source, target = (batch[name].n_id.cpu() for name in (edge_type[0], edge_type[2]))
        row, col = batch[edge_type].edge_index.cpu()
        e_id = batch[edge_type].e_id.cpu()
        original = data[edge_type].edge_index[:, e_id]
        assert torch.equal(torch.stack([source[row], target[col]]), original)
        for key in data[edge_type].edge_attrs():
            if key != "edge_index":
                assert torch.equal(batch[edge_type][key].cpu(), data[edge_type][key][e_id])


def check_fanouts(batch: Any, data: Data, fanouts: list[int]) -> None:
    """Each node is expanded once, a hop after it was found, by min(fanout, degree) edges."""
    assert isinstance(batch.num_sampled_nodes, list)
    assert isinstance(batch.num_sampled_edges, list)
    assert sum(batch.num_sampled_nodes) == len(batch.n_id)
    assert sum(batch.num_sampled_edges) == len(batch.e_id)
    degrees = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
    n_id, col, e_id = batch.n_id.cpu(), batch.edge_index[1].cpu(), batch.e_id.cpu()
    first_node = first_edge = 0
    for hop, fanout in enumerate(fanouts):
        targets = torch.arange(first_node, first_node + batch.num_sampled_nodes[hop])
        edges = slice(first_edge, first_edge + batch.num_sampled_edges[hop])
        counts = torch.bincount(col[edges], minlength=len(n_id))
        expected = degrees[n_id[targets]]
        if fanout >= 0:
            expected = expected.clamp(max=fanout)
        assert torch.equal(counts[targets], expected)
        assert int(counts.sum()) == int(expected.sum())
        for target in targets.tolist():
            drawn = e_id[edges][col[edges] == target]
            assert len(drawn.unique()) == len(drawn)
        first_node += batch.num_sampled_nodes[hop]
        first_edge += batch.num_sampled_edges[hop]


class OpenedFile:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")
