"""PyG's unmodified GraphSAINT samplers on shared data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.typing
from torch_geometric import loader as pyg_loader
from torch_geometric.data import Data

import peergraph_pyg
from peergraph.testing import run_ranks
from tests.adapters.pyg.graphs import OpenedFile, random_data, random_hetero

KINDS = {
    "GraphSAINTNodeSampler": {},
    "GraphSAINTEdgeSampler": {},
    "GraphSAINTRandomWalkSampler": {"walk_length": 2},
}


def numbered() -> Data:
    data = random_data()
    data.node_id = torch.arange(data.num_nodes)
    data.edge_id = torch.arange(data.num_edges)
    return data


def make(kind: str, shared: Any, **options: Any) -> Any:
    options = {"batch_size": 6, "num_steps": 5, "log": False, **KINDS[kind], **options}
    return getattr(pyg_loader, kind)(shared, **options)


def check(batch: Any, data: Data) -> None:
    """All edges among the nodes, and the attributes of both."""
    n_id, e_id = batch.node_id.cpu(), batch.edge_id.cpu()
    assert torch.equal(n_id, torch.unique(n_id))
    assert batch.num_nodes == len(n_id)
    inside = torch.isin(data.edge_index, n_id).all(0).nonzero().view(-1)
    assert torch.equal(e_id.sort().values, inside)
    assert bool((batch.edge_index[1].diff() >= 0).all())
    assert torch.equal(n_id[batch.edge_index.cpu()], data.edge_index[:, e_id])
    for key in ("x", "y", "train_mask"):
        assert torch.equal(batch[key].cpu(), data[key][n_id])
    for key in ("edge_attr", "edge_weight"):
        assert torch.equal(batch[key].cpu(), data[key][e_id])
    assert batch.name == "random"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_batches(kind: str, workers: int, device: torch.device) -> None:
    data = numbered()
    shared = peergraph_pyg.share(data, device=device)
    loader = make(kind, shared, num_workers=workers)
    assert isinstance(loader, getattr(pyg_loader, kind))
    assert len(loader) == 5
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == 5
        for batch in batches:
            check(batch, data)
            assert "node_norm" not in batch


@pytest.mark.parametrize("kind", KINDS)
def test_norm(kind: str, device: torch.device, tmp_path: Path) -> None:
    """Means over all nodes are estimated without bias; saved values are read again."""
    data = numbered()
    shared = peergraph_pyg.share(data, device=device)
    torch.manual_seed(0)
    options = {"sample_coverage": 150, "save_dir": str(tmp_path), "num_steps": 300}
    loader = make(kind, shared, **options)
    nodes, edges = loader.norm.nodes.read(), loader.norm.edges.read()
    total = 0.0
    for batch in loader:
        check(batch, data)
        assert torch.equal(batch.node_norm.cpu(), nodes[batch.node_id.cpu()])
        assert torch.equal(batch.edge_norm.cpu(), edges[batch.edge_id.cpu()])
        total += float(batch.node_norm.sum())
    drawn = nodes < 10  # the others were in no subgraph
    assert total / 300 == pytest.approx(float(drawn.sum()) / 60, rel=0.1)
    name = f"{kind.lower()}_{'2_' if KINDS[kind] else ''}150.pt"
    saved = torch.load(tmp_path / name)
    assert torch.equal(saved[0], nodes)
    assert torch.equal(saved[1], edges)
    torch.save((nodes + 1, edges), tmp_path / name)
    again = make(kind, shared, **options)
    assert torch.equal(again.norm.nodes.read(), nodes + 1)
    assert torch.equal(again.norm.edges.read(), edges)


def test_files_that_are_no_norms(tmp_path: Path) -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    path = tmp_path / "graphsaintnodesampler_2.pt"
    for content in (OpenedFile(tmp_path / "created"), {"nodes": torch.ones(3)}, (torch.ones(3), 4)):
        torch.save(content, path)
        with pytest.raises(ValueError, match="2.pt is no normalisation of GraphSAINT"):
            make("GraphSAINTNodeSampler", shared, sample_coverage=2, save_dir=str(tmp_path))
    assert not (tmp_path / "created").exists()


def test_norm_of_another_graph(tmp_path: Path) -> None:
    torch.save((torch.ones(3), torch.ones(4)), tmp_path / "graphsaintnodesampler_2.pt")
    shared = peergraph_pyg.share(random_data(), device="cpu")
    with pytest.raises(ValueError, match="another graph"):
        make("GraphSAINTNodeSampler", shared, sample_coverage=2, save_dir=str(tmp_path))


def test_same_on_the_cpu_and_the_device(device: torch.device) -> None:
    for kind in KINDS:
        batches = []
        for on in ("cpu", device):
            shared = peergraph_pyg.share(numbered(), device=on)
            torch.manual_seed(3)
            batches.append(list(make(kind, shared, sample_coverage=3)))
        for batch, other in zip(*batches, strict=True):
            for key in ("node_id", "edge_index", "edge_id", "node_norm", "edge_norm"):
                assert torch.equal(batch[key], other[key].cpu())


def _batches(kind: str) -> list[Any]:
    rank = torch.distributed.get_rank()
    shared = peergraph_pyg.share(numbered() if rank == 0 else None, device="cpu")
    torch.manual_seed(5)
    loader = make(kind, shared, sample_coverage=5)
    torch.manual_seed(6)
    return [(b.node_id.tolist(), b.node_norm.tolist(), b.edge_norm.tolist()) for b in loader]


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks(kind: str) -> None:
    [alone] = run_ranks(_batches, 1, kind)
    assert run_ranks(_batches, 2, kind) == [alone, alone]


def test_errors() -> None:
    typed = peergraph_pyg.share(random_hetero(), device="cpu")
    with pytest.raises(NotImplementedError, match="HGTLoader"):
        make("GraphSAINTNodeSampler", typed)
    data = random_data()
    data.node_norm = data.y
    with pytest.raises(ValueError, match="rename it"):
        make("GraphSAINTNodeSampler", peergraph_pyg.share(data, device="cpu"))


@pytest.mark.skipif(torch_geometric.typing.WITH_TORCH_SPARSE, reason="torch-sparse serves it")
def test_subclasses_are_not_served() -> None:
    class MySampler(pyg_loader.GraphSAINTSampler):  # type: ignore[misc]
        pass

    shared = peergraph_pyg.share(random_data(), device="cpu")
    with pytest.raises(ImportError, match="not to subclasses such as MySampler"):
        MySampler(shared, batch_size=4)
    with pytest.raises(ImportError) as error:
        MySampler(random_data(), batch_size=4)
    assert "subclasses" not in str(error.value)
