"""GraphBolt's features over a store, the operators of its missing library, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("peergraph_dgl", exc_type=ImportError)
pytest.importorskip("peergraph_dgl.graphbolt", exc_type=ImportError)

from dgl import graphbolt as gb

from peergraph_dgl.backend import graphbolt_operators as operators
from peergraph_dgl.graphbolt import (
    FeatureStore,
    LocalFeature,
    SamplingGraph,
    TableFeature,
)
from tests.adapters.dgl.test_graphbolt import NODES, plain

Share = Callable[[Any], Any]


def test_features(share: Any, device: torch.device) -> None:
    g = plain()
    store = share(g)
    features = FeatureStore(store)
    assert set(features.keys()) == {
        *(("node", None, name) for name in ("x", "y")),
        *(("edge", None, name) for name in ("w", "half", "mask")),
    }
    feature = features["node", None, "x"]
    assert isinstance(feature, TableFeature)
    assert (feature.size(), feature.count()) == (torch.Size([5]), NODES)
    assert features.size("edge", None, "w") == torch.Size([])
    assert features.count("node", None, "y") == NODES
    assert features.metadata("node", None, "y") == {}
    assert torch.equal(feature.read(), g.ndata["x"])
    ids = torch.tensor([3, 3, 0], device=device)
    rows = feature.read(ids)
    assert rows.device == device
    assert torch.equal(rows.cpu(), g.ndata["x"][[3, 3, 0]])
    assert feature.read_async_num_stages(device) == 1
    assert torch.equal(list(feature.read_async(ids))[-1].wait(), rows)
    features.update("node", None, "x", torch.ones(2, 5, device=device), torch.tensor([1, 2]))
    assert bool((feature.read(torch.tensor([1, 2])) == 1).all())
    features.update("node", None, "x", torch.zeros(NODES, 5))
    assert not bool(feature.read().any())
    with pytest.raises(ValueError, match="value: expected 120 rows, got 3"):
        feature.update(torch.zeros(3, 5))
    with pytest.raises(KeyError, match="domain: expected"):
        features.read("graph", None, "x")


def test_what_there_is_not(share: Share) -> None:
    graph = SamplingGraph(share(plain()))
    for name in ("csc_indptr", "indices", "type_per_edge"):
        with pytest.raises(NotImplementedError, match=rf"{name}: .* store.edge_index"):
            getattr(graph, name)
    assert graph.node_attributes is graph.edge_attributes is graph.node_type_offset is None
    with pytest.raises(NotImplementedError, match="replace: LABOR"):
        graph.sample_layer_neighbors(torch.arange(3), torch.tensor([2]), replace=True)
    with pytest.raises(ValueError, match="fanouts: expected 1"):
        graph.sample_neighbors(torch.arange(3), torch.tensor([2, 2]))
    assert not hasattr(graph, "nonsense")
    assert graph.to("pinned").pin_memory_().copy_to_shared_memory("name") is graph


def test_features_of_this_process(share: Share, device: torch.device) -> None:
    """All rows of another width or dtype, or of a new name, do not touch the store."""
    g = plain()
    store = share(g)
    features = FeatureStore(store, {("node", None, "h"): {"layer": 1}})
    wide = torch.randn(NODES, 9, device=device)
    features.update("node", None, "h", wide)
    features.update("node", None, "x", wide.half())
    assert isinstance(features["node", None, "h"], LocalFeature)
    assert set(features.keys()) >= {("node", None, "h"), ("node", None, "x")}
    assert len(features) == 6
    assert features.size("node", None, "x") == (9,)
    assert features.count("node", None, "h") == NODES
    assert features.metadata("node", None, "h") == {"layer": 1}
    ids = torch.tensor([4, 4, 100], device=device)
    assert torch.equal(features.read("node", None, "h", ids), wide[ids])
    assert torch.equal(features.read("node", None, "x", ids.cpu()), wide[ids].half().cpu())
    (stage,) = features["node", None, "h"].read_async(ids)
    assert torch.equal(stage.wait(), wide[ids])
    features.update("node", None, "h", torch.ones(2, 9, device=device), ids[1:])
    assert bool((features.read("node", None, "h", ids) == 1).all())
    assert torch.equal(features.read("node", None, "h"), wide)
    # What is this process's stays so, whatever its width.
    features.update("node", None, "x", torch.zeros(NODES, 5))
    assert not features.read("node", None, "x").any()
    others = FeatureStore(store)
    assert ("node", None, "h") not in others
    assert torch.equal(others.read("node", None, "x"), g.ndata["x"])
    assert features.to("pinned").pin_memory_() is features
    assert features["node", None, "h"].to(device).read(ids).shape == (3, 9)
    assert "TableFeature([120], torch.int64)" in repr(features)
    if device.type == "cpu":
        again = pickle.loads(pickle.dumps(features))
        assert torch.equal(again.read("node", None, "h", ids), wide[ids])


def test_features_that_are_refused(share: Share) -> None:
    features = FeatureStore(share(plain()))
    with pytest.raises(ValueError, match=r"value: expected 120 rows, got shape \[3, 2\]"):
        features.update("node", None, "h", torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"value: expected 900 rows, got shape \[\]"):
        features.update("edge", None, "h", torch.zeros(()))
    with pytest.raises(TypeError, match="value: expected a tensor, got list"):
        features.update("node", None, "h", [1.0] * NODES)
    with pytest.raises(KeyError, match="h"):
        features.update("node", None, "h", torch.zeros(1, 2), torch.tensor([0]))
    with pytest.raises(KeyError, match="paper"):
        features.update("node", "paper", "h", torch.zeros(NODES, 2))
    with pytest.raises(KeyError, match="domain: expected"):
        features.update("graph", None, "h", torch.zeros(1, 2))
    features.update("node", None, "h", torch.zeros(NODES, 2))
    with pytest.raises(ValueError, match=r"value: expected torch.float32 of shape \(1, 2\)"):
        features.update("node", None, "h", torch.zeros(1, 3), torch.tensor([0]))
    with pytest.raises(IndexError):
        features.read("node", None, "h", torch.tensor([NODES]))


def test_without_the_native_library() -> None:
    """What needs it says what to use."""
    try:
        _ = torch.classes.graphbolt.FusedCSCSamplingGraph
        pytest.skip("GraphBolt's native library is there")
    except RuntimeError:
        g = plain()
    way_out = "SamplingGraph"
    with pytest.raises(NotImplementedError, match=way_out):
        gb.from_dglgraph(g)
    with pytest.raises(NotImplementedError, match=way_out):
        gb.fused_csc_sampling_graph(*g.adj_tensors("csc")[:2])
    with pytest.raises(NotImplementedError, match=way_out):
        gb.load_from_shared_memory("name")
    with pytest.raises(NotImplementedError, match="GPUCachedFeature"):
        torch.ops.graphbolt.gpu_cache([2, 3], torch.float32)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_operators(dtype: torch.dtype, device: torch.device) -> None:
    def ids(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    unique, src, dst = operators.unique_and_compact(ids(9, 4, 7, 9, 1), ids(4, 5), ids(5, 4))
    assert unique.tolist() == [5, 4, 9, 7, 1]
    assert src.tolist() == [2, 1, 3, 2, 4]
    assert dst.tolist() == [1, 0]
    assert {unique.dtype, src.dtype, dst.dtype} == {dtype}
    nothing = operators.unique_and_compact(ids(), ids(), ids())
    assert [tensor.numel() for tensor in nothing] == [0, 0, 0]
    indptr = ids(0, 2, 2, 5)
    assert gb.expand_indptr(indptr, dtype=dtype).tolist() == [0, 0, 2, 2, 2]
    assert gb.expand_indptr(indptr, node_ids=ids(8, 9, 7), output_size=5).tolist() == [
        8, 8, 7, 7, 7
    ]  # fmt: skip
    assert gb.isin(ids(1, 2, 3), ids(2, 5)).tolist() == [False, True, False]
    rows = torch.arange(6.0).view(3, 2)
    assert gb.index_select(rows, torch.tensor([2, 0], device=device)).tolist() == [[4, 5], [0, 1]]
