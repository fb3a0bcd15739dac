"""Real graphs of the shared data folder: batches against the files, and a model that learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GAT, GCN, GraphSAGE
from torch_geometric.nn.models.basic_gnn import BasicGNN

import peergraph_pyg
from peergraph.memory import Group
from tests.adapters.pyg.graphs import check_batch, check_fanouts

SHARED_DATA = Path(__file__).parents[3].parent / "shared" / "data"


def read(name: str) -> Any:
    path = SHARED_DATA / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"needs {path}")
    return np.load(path, allow_pickle=False)


def edge_index(arrays: Any, prefix: str = "") -> Tensor:
    indptr = torch.from_numpy(arrays[f"{prefix}indptr"])
    sources = torch.from_numpy(arrays[f"{prefix}indices"]).long()
    targets = torch.arange(len(indptr) - 1).repeat_interleave(indptr.diff())
    return torch.stack([sources, targets])


def features(arrays: Any, prefix: str = "") -> Tensor:
    """Bags of words, made dense, rows of length 1."""
    parts = (arrays[f"{prefix}x_{part}"] for part in ("data", "indices", "indptr"))
    sparse = scipy.sparse.csr_matrix(tuple(parts), shape=arrays[f"{prefix}x_shape"])
    return F.normalize(torch.from_numpy(sparse.toarray()).float())


def read_cora() -> Data:
    arrays = read("cora")
    masks = {key: torch.from_numpy(arrays[key]) for key in ("train_mask", "val_mask", "test_mask")}
    return Data(
        x=features(arrays), edge_index=edge_index(arrays), y=torch.from_numpy(arrays["y"]), **masks
    )


def train(data: Data, device: torch.device, loader: Any, seed: int) -> float:
    """Test accuracy after 20 passes; full neighbours at test time."""
    torch.manual_seed(seed)
    model = GraphSAGE(data.num_features, 32, num_layers=2, out_channels=7, dropout=0.5).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(20):
        model.train()
        for batch in loader:
            batch = batch.to(device)
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        guess = model(data.x.to(device), data.edge_index.to(device)).argmax(-1).cpu()
    return float((guess == data.y)[data.test_mask].double().mean())


def test_cora_is_learnt_as_well_as_without_sampling(device: torch.device) -> None:
    data = read_cora()
    shared = peergraph_pyg.share(data, device=device)
    sampled = NeighborLoader(
        shared, [10, 10], input_nodes=shared.train_mask, batch_size=70, shuffle=True
    )
    # PyG's loaders put the seeds first; so does this whole graph, as one batch.
    seeds_first = torch.argsort(~data.train_mask, stable=True)
    whole = data.subgraph(seeds_first)
    whole.batch_size = int(data.train_mask.sum())
    with_peergraph = train(data, device, sampled, seed=0)
    without = train(data, device, [whole], seed=0)
    assert with_peergraph > 0.75
    assert with_peergraph > without - 0.03


def test_web_graph_with_hubs(device: torch.device) -> None:
    """In-degrees up to 55,252 and self loops."""
    arrays = read("uk_2007_100k")
    edges = edge_index(arrays)
    data = Data(edge_index=edges, x=torch.arange(100_000), weight=torch.arange(edges.size(1)))
    shared = peergraph_pyg.share(data, device=device)
    hub = int(torch.bincount(edges[1]).argmax())
    seeds = torch.tensor([hub, 5, 99_999])
    for fanouts in ([15, 10], [-1, 2]):
        batch = next(iter(NeighborLoader(shared, fanouts, input_nodes=seeds, batch_size=3)))
        check_batch(batch, data)
        assert torch.equal(batch.weight.cpu(), batch.e_id.cpu())
        if fanouts[0] > 0:
            check_fanouts(batch, data, fanouts)


def read_typed(name: str) -> HeteroData:
    """Edges of all types, and features and masks of those types that have some."""
    arrays = read(name)
    data = HeteroData()
    for node_type in arrays["node_types"].tolist():
        data[node_type].num_nodes = int(arrays[f"{node_type}.num_nodes"])
        if f"{node_type}.x_data" in arrays:
            data[node_type].x = features(arrays, f"{node_type}.")
    for edge_type in arrays["edge_types"].tolist():
        data[tuple(edge_type.split("."))].edge_index = edge_index(arrays, f"{edge_type}.")
    target = str(arrays["target"])
    data[target].train_mask = torch.from_numpy(arrays[f"{target}.train_mask"])
    return data


def test_films(device: torch.device) -> None:
    data = read_typed("imdb_hetero")
    shared = peergraph_pyg.share(data, device=device)
    loader = NeighborLoader(
        shared, [4, 4], input_nodes=("movie", shared["movie"].train_mask), batch_size=200
    )
    for batch in loader:
        assert batch["movie"].batch_size == 200
        for node_type in data.node_types:
            n_id = batch[node_type].n_id.cpu()
            assert torch.equal(batch[node_type].x.cpu(), data[node_type].x[n_id])
        for source, relation, target in data.edge_types:
            key = (source, relation, target)
            row, col = batch[key].edge_index.cpu()
            ends = torch.stack([batch[source].n_id.cpu()[row], batch[target].n_id.cpu()[col]])
            assert torch.equal(ends, data[key].edge_index[:, batch[key].e_id.cpu()])


@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GAT])
def test_offloaded_rows_in_bfloat16(kind: type[BasicGNN]) -> None:
    """Losses of 50 epochs are close to those of exact rows, and the accuracy is as high."""
    data = read_cora()
    data.x = data.x[:, :128].contiguous()

    def losses(dtype: torch.dtype | None, chunks: int) -> tuple[list[float], float]:
        parts = peergraph_pyg.full_graph(
            data, 1 << 30, offload=True, num_chunks=chunks, hidden_dtype=dtype, order="original",
            group=Group(0, 1, torch.device("cpu"), 60.0),
        )  # fmt: skip
        torch.manual_seed(1)
        model = peergraph_pyg.accelerate(kind(128, 16, 2, 7))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        results = []
        for _ in range(50):
            optimizer.zero_grad()
            out = model(parts.x, parts.edge_index)[parts.train_mask]
            loss = F.cross_entropy(out, parts.y[parts.train_mask])
            loss.backward()
            optimizer.step()
            results.append(loss.item())
        with torch.no_grad():
            out = model(parts.x, parts.edge_index)[parts.test_mask]
        return results, float((out.argmax(1) == parts.y[parts.test_mask]).float().mean())

    exact, accuracy = losses(None, 2)
    rounded, rounded_accuracy = losses(torch.bfloat16, 2)
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.02)
    assert losses(torch.bfloat16, 1)[0] == pytest.approx(exact, rel=0.02)
    assert rounded_accuracy == pytest.approx(accuracy, abs=0.02)
