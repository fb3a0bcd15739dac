"""Whether an ingested folder is what a store built in memory saves."""

from __future__ import annotations

from pathlib import Path

import torch

from peergraph.store import EdgeSource, EdgeType, GraphSource, Store


def assert_same_folder(folder: Path, source: GraphSource) -> None:
    """Every file equals, byte by byte, that of a store built from the source."""
    expected = folder.with_name(f"{folder.name}-built")
    with Store.build(source, plan="host", device="cpu") as store:
        store.save(expected)
    names = {file.name for file in expected.iterdir()}
    file_names = {file.name for file in folder.iterdir() if not file.name.endswith(".ids.parquet")}
    assert file_names == names
    for name in names:
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name
    with Store.load(folder, plan="host", device="cpu") as store:
        assert store.edge_types == list(source.edges)


def coo(*edges: tuple[int, int]) -> torch.Tensor:
    """``[2, E]`` of (source, destination)."""
    return torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t().contiguous()


def relations(**edges: torch.Tensor) -> dict[EdgeType, EdgeSource]:
    """Edge sources by ``source__relation__destination``."""
    return {tuple(name.split("__")): EdgeSource(coo=e) for name, e in edges.items()}  # type: ignore[misc]
