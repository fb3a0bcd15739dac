"""torch's default device, which users set, says nothing of where a store's own tensors lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from peergraph.sampling import NeighborSampler, presample
from peergraph.store import Store
from tests.named_case import named_case
from tests.store.graphs import build, heterogeneous_source, homogeneous_source


@pytest.mark.parametrize("plan", ["replicated", "mixed"])
def test_stores_on_another_device(plan: str, device: torch.device, tmp_path: Path) -> None:
    for make in (homogeneous_source, heterogeneous_source):
        with named_case(make.__name__):
            source = make()
            with build(source, plan=plan, device=device) as store:
                expected = everything(store, tmp_path / f"{make.__name__} as ever")
            with torch.device("meta"), build(source, plan=plan, device=device) as store:
                actual = everything(store, tmp_path / f"{make.__name__} another")
            torch.testing.assert_close(actual, expected)


def everything(store: Store, folder: Path) -> dict[str, Any]:
    seeds = {t: torch.tensor([0, 3, 3], device="cpu") for t in store.node_types}
    fanouts = {t: [3, 2] for t in store.edge_types}
    values: dict[str, Any] = {}
    for name, options in {
        "plain": {},
        "disjoint": {"disjoint": True},
        "induced": {"subgraph": "induced"},
        "labor": {"labor": True},
    }.items():
        sample = NeighborSampler(store, fanouts, **options).sample(seeds, 7)
        values[name] = list(sample.nodes.values()), list(sample.row.values())
    values["edges"] = [store.edge_index(t) for t in store.edge_types]
    values["tables"] = [store.node_table("x", t).read() for t in store.node_types]
    heat = presample(store, fanouts, seeds, 2)
    values["heat"] = list(heat.features.values())
    store.save(folder)
    return values
