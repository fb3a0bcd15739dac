"""Copies, pickles and files of shared DGL graphs and of batches."""

from __future__ import annotations

import copy
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.graphs import assert_same_graph, random_graph, random_hetero

# isort: split

import dgl
import torch
from dgl.frame import Column

import peergraph_dgl
from peergraph.store import StoreTensor, TableTensor
from peergraph.testing import run_ranks


def shared(g: Any) -> Any:
    return peergraph_dgl.share(g, device="cpu")


def some_blocks(g: Any) -> Any:
    """Blocks of a loader whose data were not read yet."""
    sampler = dgl.dataloading.NeighborSampler([-1])
    ((_, _, blocks),) = dgl.dataloading.DataLoader(g, torch.arange(9), sampler, batch_size=9)
    return blocks


def save_all(folder: Path) -> None:
    """What one process writes, before it ends with all that it shared."""
    g = shared(random_graph())
    torch.save(g, folder / "graph.pt")
    (folder / "hetero.pickle").write_bytes(pickle.dumps(shared(random_hetero())))
    torch.save(some_blocks(g), folder / "blocks.pt")
    torch.save(g.subgraph([3, 1, 2]), folder / "part.pt")
    del g.ndata["half"]  # DGL cannot save it
    dgl.save_graphs(str(folder / "graph.dgl"), [g])


def assert_plain(g: Any) -> None:
    for frame in (*g._node_frames, *g._edge_frames):
        for column in frame._columns.values():
            assert type(column) is Column
            assert type(column.data) is torch.Tensor
    with pytest.raises(ValueError, match="without a store"):
        peergraph_dgl.store_of(g)


def test_files_outlive_the_process(tmp_path: Path) -> None:
    run_ranks(save_all, 1, tmp_path)
    g = random_graph()
    loaded = torch.load(tmp_path / "graph.pt", weights_only=False)
    assert_plain(loaded)
    assert_same_graph(loaded, g)
    typed = pickle.loads((tmp_path / "hetero.pickle").read_bytes())
    assert_plain(typed)
    assert_same_graph(typed, random_hetero())
    (block,) = torch.load(tmp_path / "blocks.pt", weights_only=False)
    assert_plain(block)
    assert torch.equal(block.srcdata["x"], g.ndata["x"][block.srcdata[dgl.NID]])
    assert torch.equal(block.edata["w"], g.edata["w"][block.edata[dgl.EID]])
    part = torch.load(tmp_path / "part.pt", weights_only=False)
    assert_plain(part)
    assert torch.equal(part.ndata["x"], g.ndata["x"][[3, 1, 2]])
    (again,), _ = dgl.load_graphs(str(tmp_path / "graph.dgl"))
    assert torch.equal(again.ndata["x"], g.ndata["x"])
    assert torch.equal(again.edata["w"], g.edata["w"])


def test_sent_to_a_process_is_a_handle() -> None:
    g = random_hetero()
    result = shared(g)
    other = ForkingPickler.loads(ForkingPickler.dumps(result))
    assert_same_graph(other, g)
    result.nodes["user"].data["x"][[2]] = 5.0
    assert other.nodes["user"].data["x"][2].tolist() == [5.0] * 3
    assert peergraph_dgl.store_of(other).num_nodes("user") == g.num_nodes("user")


def test_deep_copies_are_read_only() -> None:
    g = random_graph()
    result = shared(g)
    copied = copy.deepcopy(result)
    assert_same_graph(copied, g)
    assert peergraph_dgl.store_of(copied) is peergraph_dgl.store_of(result)
    assert isinstance(copied.ndata["x"], TableTensor)
    with pytest.raises(RuntimeError, match="a copy by copy.deepcopy"):
        copied.ndata["x"][[1]] = 1.0
    # By nodes DGL writes out of place: the copy has a column of its own then.
    copied.nodes[torch.tensor([2])].data["x"] = torch.zeros(1, *g.ndata["x"].shape[1:])
    assert not isinstance(copied.ndata["x"], StoreTensor)
    assert torch.equal(result.ndata["x"].clone(), g.ndata["x"])


def test_clones_share_as_those_of_dgl() -> None:
    for g in (random_graph(), shared(random_graph())):
        g.clone().ndata["x"][[1]] = 1.0
        assert g.ndata["x"][1].tolist() == [1.0] * g.ndata["x"].shape[1]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference(mode: Any) -> None:
    g = random_graph()
    width = g.ndata["x"].shape[1]
    result = shared(g)
    over_store = peergraph_dgl.from_store(peergraph_dgl.store_of(result))
    layers = [
        dgl.nn.GraphConv(width, 3, allow_zero_in_degree=True),
        dgl.nn.SAGEConv(width, 3, "mean"),
        dgl.nn.GATConv(width, 3, 2, allow_zero_in_degree=True),
    ]
    layers += [peergraph_dgl.accelerate(copy.deepcopy(layer)) for layer in layers]
    with mode():
        for layer in layers:
            expected = layer(g, g.ndata["x"])
            torch.testing.assert_close(layer(result, result.ndata["x"]), expected)
            (block,) = some_blocks(result)
            expected = layer(block, g.ndata["x"][block.srcdata[dgl.NID]])
            torch.testing.assert_close(layer(block, block.srcdata["x"]), expected)
        assert torch.equal(result.ndata["x"][:4], g.ndata["x"][:4])
        assert torch.equal(over_store.ndata["x"][:, 1], g.ndata["x"][:, 1])
