"""PyG's unmodified ClusterData and ClusterLoader on shared data: the contents are PyG's."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData, ClusterLoader

import peergraph_pyg
from peergraph.fullgraph import node_parts
from peergraph.testing import run_ranks
from peergraph_pyg import EdgeIndexTensor
from peergraph_pyg.subgraphs import cluster
from tests.adapters.pyg.graphs import OpenedFile, random_data, random_hetero
from tests.adapters.pyg.test_subgraphs import assert_same

PARTS = 5


class PygClusterData(ClusterData):  # type: ignore[misc]
    """PyG's own class, with the partition of Peergraph in the place of METIS's."""

    def _metis(self, edge_index: Tensor, num_nodes: int) -> Tensor:
        return node_parts(edge_index, num_nodes, self.num_parts)


def simple_data() -> Data:
    """A graph without parallel edges, whose order PyG leaves to a sort that is not stable."""
    data: Data = random_data().coalesce()
    return data


def pair(device: torch.device, folder: Path, sparse_format: str, **flags: bool) -> tuple[Any, Any]:
    """The partition of shared data, and PyG's own, which it reads."""
    data = simple_data()
    shared = peergraph_pyg.share(data, device=device)
    options = {"save_dir": str(folder), "log": False, "sparse_format": sparse_format, **flags}
    expected = PygClusterData(data, PARTS, **options)
    return ClusterData(shared, PARTS, **options), expected


@pytest.mark.parametrize("flags", [{}, {"keep_inter_cluster_edges": True, "recursive": True}])
@pytest.mark.parametrize("sparse_format", ["csr", "csc"])
def test_parts(
    sparse_format: str, flags: dict[str, bool], device: torch.device, tmp_path: Path
) -> None:
    parts, expected = pair(device, tmp_path, sparse_format, **flags)
    assert len(parts) == PARTS
    for part, other in zip(parts, expected, strict=True):
        assert_same(part, other)
    for field in ("partptr", "node_perm"):
        assert torch.equal(getattr(parts.partition, field), getattr(expected.partition, field))
    assert_same(parts[-1], expected[PARTS - 1])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sparse_format", ["csr", "csc"])
def test_batches(sparse_format: str, workers: int, device: torch.device, tmp_path: Path) -> None:
    # ClusterLoader makes the same batches with keep_inter_cluster_edges and without.
    parts, expected = pair(device, tmp_path, sparse_format, keep_inter_cluster_edges=workers == 0)
    for shuffle in (False, True):
        torch.manual_seed(1)
        others = list(ClusterLoader(expected, batch_size=2, shuffle=shuffle))
        torch.manual_seed(1)
        loader = ClusterLoader(parts, batch_size=2, shuffle=shuffle, num_workers=workers)
        for batch, other in zip(loader, others, strict=True):
            assert_same(batch, other)


def test_saves_and_loads(device: torch.device, tmp_path: Path) -> None:
    """PyG reads what shared data saved, and the other way round."""
    data = simple_data()
    shared = peergraph_pyg.share(data, device=device)
    parts = ClusterData(shared, PARTS, save_dir=str(tmp_path), log=False)
    by_pyg = ClusterData(data, PARTS, save_dir=str(tmp_path), log=False)
    for part, other in zip(parts, by_pyg, strict=True):
        assert_same(part, other)
    turned = by_pyg.partition
    turned.node_perm = turned.node_perm.flip(0)
    torch.save(turned, tmp_path / f"part_{PARTS}" / "metis.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = ClusterData(shared, PARTS, save_dir=str(tmp_path), log=False)
    assert torch.equal(again.partition.node_perm, parts.partition.node_perm.flip(0))


def test_code_in_a_saved_file_does_not_run(tmp_path: Path) -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    folder = tmp_path / "part_3"
    folder.mkdir()
    torch.save(OpenedFile(tmp_path / "created"), folder / "metis.pt")
    with pytest.raises(ValueError, match="metis.pt is no partition of a graph"):
        ClusterData(shared, 3, save_dir=str(tmp_path), log=False)
    (folder / "metis.pt").write_bytes(b"")
    with pytest.raises(ValueError, match="metis.pt is no partition of a graph"):
        ClusterData(shared, 3, save_dir=str(tmp_path), log=False)
    assert not (tmp_path / "created").exists()


def test_saved_for_another_graph(tmp_path: Path) -> None:
    PygClusterData(random_data(40), 3, save_dir=str(tmp_path), log=False)
    shared = peergraph_pyg.share(random_data(), device="cpu")
    with pytest.raises(ValueError, match="40 nodes in 3 parts, expected 60 in 3"):
        ClusterData(shared, 3, save_dir=str(tmp_path), log=False)


def test_batches_read_their_edges_only(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    monkeypatch.delattr(EdgeIndexTensor, "materialize")
    list(ClusterLoader(ClusterData(shared, PARTS, log=False), batch_size=2))


def _batches(folder: str | None) -> list[str]:
    rank = torch.distributed.get_rank()
    shared = peergraph_pyg.share(random_data() if rank == 0 else None, device="cpu")
    parts = ClusterData(shared, PARTS, save_dir=folder, log=False, keep_inter_cluster_edges=True)
    batches = [*ClusterLoader(parts, batch_size=2), *parts]
    return [str(batch.to_dict()) for batch in batches]


@pytest.mark.parametrize("saves", [False, True])
def test_two_ranks(saves: bool, tmp_path: Path) -> None:
    folder = str(tmp_path) if saves else None
    [alone] = run_ranks(_batches, 1, folder)
    assert run_ranks(_batches, 2, folder) == [alone, alone]


def test_recursive(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    methods = []

    def by_method(edge_index: Tensor, num_nodes: int, num_parts: int, *, method: str) -> Tensor:
        methods.append(method)
        return torch.arange(num_nodes) % num_parts

    monkeypatch.setattr(cluster, "node_parts", by_method)
    assert ClusterData(shared, PARTS, recursive=True, log=False)[1].num_nodes == 12
    ClusterData(shared, PARTS, log=False)
    assert methods == ["metis_recursive", "auto"]


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match="METIS needs pymetis"):
        ClusterData(shared, 3, recursive=True, log=False)
    with pytest.raises(NotImplementedError, match="edge_index"):
        ClusterData(peergraph_pyg.share(random_hetero(), device="cpu"), 3)
    with pytest.raises(IndexError, match="part 3 of 3"):
        ClusterData(shared, 3, log=False)[3]
