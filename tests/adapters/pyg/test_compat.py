"""Each private part of PyG and torch that the adapter touches is as it was when that was written.

A failure says which version of which package changed it, and that `peergraph_pyg.compat` must
follow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch_geometric import utils
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import ClusterLoader, LinkLoader, NodeLoader, link_loader, node_loader
from torch_geometric.nn import GraphSAGE, SAGEConv
from torch_geometric.sampler import NeighborSampler

from peergraph_pyg import compat
from peergraph_pyg import nn as fast
from peergraph_pyg.loader import class_swaps, patches
from tests.named_case import named_cases

EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])


@contextmanager
def changed_by(package: str, what: str) -> Iterator[None]:
    """Fails with the version's name where a part is gone or behaves in another way."""
    try:
        yield
    except (AttributeError, ImportError, TypeError, AssertionError) as error:
        name = {"torch_geometric": "PyG"}.get(package, package)
        pytest.fail(f"{name} {version(package)} changed {what}: {type(error).__name__}: {error}")


@pytest.mark.parametrize("package", ["torch_geometric", "torch"])
def test_a_change_names_the_version(package: str) -> None:
    expected = re.escape(f"{version(package)} changed Data._store")
    with pytest.raises(pytest.fail.Exception, match=expected), changed_by(package, "Data._store"):
        _ = Data()._no_such_storage


@named_cases(
    ("owner", "name"),
    [
        (NeighborSampler, "__init__"),
        (NeighborSampler, "_sample"),
        (NodeLoader, "__init__"),
        (NodeLoader, "__iter__"),
        (NodeLoader, "filter_fn"),
        (LinkLoader, "__init__"),
        (LinkLoader, "__iter__"),
        (LinkLoader, "filter_fn"),
        (node_loader, "filter_custom_store"),
        (node_loader, "filter_custom_hetero_store"),
        (link_loader, "filter_custom_store"),
        (link_loader, "filter_custom_hetero_store"),
        (node_loader, "filter_data"),
        (node_loader, "filter_hetero_data"),
        (link_loader, "filter_data"),
        (link_loader, "filter_hetero_data"),
        (ClusterLoader, "__init__"),
        (ClusterLoader, "_collate"),
        (Data, "subgraph"),
        (HeteroData, "subgraph"),
        (utils, "k_hop_subgraph"),
        *((kind, "__init__") for kind in class_swaps._OVER_A_STORE),
    ],
)
def test_functions_that_are_replaced(owner: Any, name: str) -> None:
    with changed_by("torch_geometric", f"{owner.__name__}.{name}"):
        assert hasattr(getattr(owner, name), "__wrapped__")


def test_replaced_functions_are_restored() -> None:
    replaced = node_loader.filter_data
    compat.patches.undo()
    try:
        assert node_loader.filter_data is replaced.__wrapped__
        assert not compat.patches
    finally:
        patches.install()
    assert node_loader.filter_data is not replaced.__wrapped__


def test_storages_of_data() -> None:
    with changed_by("torch_geometric", "Data._store, its _mapping, _key and _parent"):
        data = Data(x=torch.zeros(2, 1))
        storage = compat.data_storage(data)
        assert compat.graph_storage(data) is storage
        assert list(compat.storage_values(storage)) == ["x"]
        assert compat.storage_type(storage) is None
        assert compat.storage_data(storage) is data


def test_storages_of_hetero_data() -> None:
    with changed_by("torch_geometric", "HeteroData._global_store and _to_canonical"):
        data = HeteroData()
        data["a", "cites", "b"].edge_index = EDGES
        assert compat.graph_storage(data) is not data["a", "cites", "b"]
        assert compat.storage_type(data["a", "cites", "b"]) == ("a", "cites", "b")
        assert compat.canonical_edge_type(data, ("a", "b")) == ("a", "cites", "b")


def test_modes_of_torch() -> None:
    with changed_by(
        "torch", "the stack of dispatch modes, torch.func or forward_ad._current_level"
    ):
        assert not compat.is_traced()
        assert not compat.has_function_transform()
        assert not compat.has_forward_mode()
        modes: list[bool] = []

        class Mode(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kw: Any = None
            ) -> Any:
                return func(*args, **(kw or {}))

        with Mode():
            assert compat.is_traced()
        torch.func.grad(lambda x: modes.append(compat.has_function_transform()) or x.sum())(
            torch.ones(2)
        )
        assert modes == [True]
        with forward_ad.dual_level():
            assert compat.has_forward_mode()


def test_hooks_of_modules() -> None:
    with changed_by("torch", "where modules keep their hooks"):
        linear = torch.nn.Linear(1, 1)
        assert not compat.has_hooks(linear)
        assert not compat.has_forward_hooks(linear)
        for register in (
            linear.register_forward_hook,
            linear.register_forward_pre_hook,
            linear.register_full_backward_hook,
            linear.register_full_backward_pre_hook,
            torch.nn.modules.module.register_module_forward_hook,
            torch.nn.modules.module.register_module_forward_pre_hook,
            torch.nn.modules.module.register_module_full_backward_hook,
            torch.nn.modules.module.register_module_full_backward_pre_hook,
        ):
            handle = register(lambda *_: None)
            assert compat.has_hooks(linear), register.__name__
            handle.remove()
        assert not compat.has_hooks(linear)


def test_versions_of_tensors() -> None:
    with changed_by("torch", "torch.autograd._unsafe_preserve_version_counter"):
        tensor = torch.zeros(2)
        with compat.keep_version(tensor):
            tensor += 1
        assert tensor._version == 0


def test_views_and_writes_of_tensors() -> None:
    with changed_by("torch", "Tensor._version, _indices, _values or UntypedStorage._cdata"):
        tensor = torch.zeros(3, 2)
        view = tensor[1:]
        assert compat.memory_of(view) == compat.memory_of(tensor) != compat.memory_of(view.clone())
        view += 1
        assert compat.version_of(tensor) == compat.version_of(view) == 1
        indices, values = compat.coo_tensors(tensor.to_sparse())
        assert indices.shape == (2, 4)
        assert torch.equal(values, torch.ones(4))


def test_schemas_of_operators() -> None:
    with changed_by("torch", "OpOverload._schema"):
        aten = torch.ops.aten
        assert [compat.can_alias(f) for f in (aten.view.default, aten.add.Tensor)] == [True, False]
        assert compat.is_in_place(aten.add_.Tensor)
        assert not compat.is_in_place(aten.add.Tensor)


def test_hooks_of_message_passing() -> None:
    with changed_by("torch_geometric", "the hooks of MessagePassing"):
        conv = SAGEConv(2, 2)
        assert compat.step_hook(conv) is None
        for step in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update"):
            for kind in ("_forward_pre", "_forward"):
                handle = getattr(conv, f"register_{step}{kind}_hook")(lambda *_: None)
                assert compat.step_hook(conv) == f"{step}{kind}_hooks"
                handle.remove()


def test_classes_of_layers() -> None:
    with changed_by(
        "torch_geometric", "MessagePassing's _orig_propagate, _jinja_propagate, inspector"
    ):
        for name in ("propagate", "edge_updater"):
            assert hasattr(SAGEConv, f"_orig_{name}") or name == "edge_updater"
            assert hasattr(fast.SAGEConv, f"_jinja_{name}")
        conv = SAGEConv(2, 2)
        compat.set_layer_class(conv, fast.SAGEConv)
        assert conv.inspector._cls is fast.SAGEConv
        compat.set_layer_class(conv, SAGEConv)
        assert conv(torch.ones(3, 2), EDGES).shape == (3, 2)


def test_features_at_the_ends_of_edges() -> None:
    with changed_by("torch_geometric", "MessagePassing._set_size or _lift"):
        layer = SAGEConv(1, 1)  # One of MessagePassing itself would compile its `propagate`.
        pair = torch.arange(3.0)[:, None], torch.arange(10.0, 13)[:, None]
        size: list[int | None] = [None, None]
        sources = compat.lift_pair(layer, EDGES, size, pair, of_sources=True)
        assert isinstance(sources, Tensor)
        assert size == [3, 3]
        with_none = compat.lift_pair(layer, EDGES, [None, None], (pair[0], None), False)
        assert with_none is None


def test_trimming() -> None:
    with changed_by("torch_geometric", "TrimToLayer, trim_adj or trim_feat"):
        assert isinstance(compat.model_trim(GraphSAGE(2, 2, 2)), compat.TrimToLayer)
        assert compat.trim_feat(torch.zeros(5, 1), 1, [2, 2, 1]).shape[0] == 4
        assert compat.trim_adj(EDGES, 1, [1, 1, 1], [1, 1, 1], [2, 1]).shape[1] == 2


def test_functions_of_edges() -> None:
    with changed_by("torch_geometric", "functions of edges"):
        served = ("scatter", "degree", "one_hot", "maybe_num_nodes", "gcn_norm", "get_laplacian")
        for name in (*served, *compat.UNSERVED_FUNCTIONS):
            assert callable(compat.edge_function(name)), name
        assert "__call__" in vars(compat.Aggregation)
